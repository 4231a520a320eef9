"""Limits: how much clients may ask for, store and try; what is counted; and what an operator is told of it."""
