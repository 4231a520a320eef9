"""Places in a node: places of publications and devices, areas that clients name, and areas of retained messages."""
