"""A node: its state as one fold of its log (event sourcing): a restart restores it by applying the facts again."""
