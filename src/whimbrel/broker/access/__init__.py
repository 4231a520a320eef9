"""Access control: users and their passwords, and the topics, client identifiers and keys that each user may use."""
