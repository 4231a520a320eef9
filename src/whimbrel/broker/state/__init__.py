"""State: the shell around the node: routes, indexes, and values that a restart does not know."""
