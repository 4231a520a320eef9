"""Access: users and their passwords, and the topics, client identifiers and keys that each may use."""
