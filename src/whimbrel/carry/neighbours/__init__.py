"""Neighbours of a node: those in reach, their rates, and the requests to them and grants for them."""
