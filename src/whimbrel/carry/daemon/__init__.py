"""The daemon of a node: a participant on a real network, its memory, its log and its door for applications."""
