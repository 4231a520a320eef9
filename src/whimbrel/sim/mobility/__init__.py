"""Walks through a simulated world: the position of every node at any time."""
