"""Subscribe: SUBSCRIBE and UNSUBSCRIBE, retained messages, and history from the log."""
