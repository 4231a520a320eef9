"""Deliver: outgoing copies of notifications, from the queues of clients through their policies to their connections."""
