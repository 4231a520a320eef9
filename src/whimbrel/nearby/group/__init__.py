"""Proximity groups: producer, consumer and relay as pure cores, and their tables."""
