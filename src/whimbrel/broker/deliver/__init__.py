"""Deliver: copies on their way out: lanes, policies, and the queues of connections."""
