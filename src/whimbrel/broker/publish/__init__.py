"""Publish: the way of a publication, from admission to its answer, and its direct path."""
