"""A node: the one fold of its log, which holds all state that a restart restores."""
