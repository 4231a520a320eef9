"""Walks through a made-up world: where every node is at any time."""
