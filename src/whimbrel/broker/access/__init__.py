"""Access: who a client is, what it may do, which keys it has, and how often it may try."""
