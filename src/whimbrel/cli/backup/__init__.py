"""``whimbrel backup`` and ``whimbrel restore``."""
