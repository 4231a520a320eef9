"""Access: who a client is, what it may do, and which keys it has."""
