"""A node: the one fold of its log, and everything that a restart knows again."""
