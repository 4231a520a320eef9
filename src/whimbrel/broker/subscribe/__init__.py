"""Subscribe: SUBSCRIBE and UNSUBSCRIBE, retained messages, and history."""
