"""Proximity groups: producer, consumer and relay as pure cores, and the tables that they keep."""
