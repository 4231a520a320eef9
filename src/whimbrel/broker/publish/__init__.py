"""Publish: the steps of a publication from admission to its acknowledgement, and the direct path past most of them."""
