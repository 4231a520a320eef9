"""Publish: the steps of a publication from admission to its acknowledgement, or of a run of simple ones together."""
