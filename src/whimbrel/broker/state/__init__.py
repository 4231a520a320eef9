"""State: what a restart knows again, as the node folds it, and indexes of it."""
