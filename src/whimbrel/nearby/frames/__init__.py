"""Frames: what nodes say to each other over the air; values, their bytes, and signatures."""
