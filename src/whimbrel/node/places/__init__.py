"""Places in a node: where publications are heard, areas that clients name, and areas of what is retained."""
