"""Frames: the packets between nodes, as values and as bytes, and their signatures."""
