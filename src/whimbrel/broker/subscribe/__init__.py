"""Subscribe: what SUBSCRIBE and UNSUBSCRIBE do; retained messages, and history."""
