"""``whimbrel clients``."""
