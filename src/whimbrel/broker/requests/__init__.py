"""Requests: JSON requests to the broker, about named sessions, policies and clients, and their answers."""
