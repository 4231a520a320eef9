"""State of the broker around the node: matching routes, indexes, and values that are lost on a restart."""
