"""Neighbours of a node: who is in reach, what each may cost, and what was asked of it and granted to it."""
