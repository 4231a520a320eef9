"""Waiting: queues for work that needs fsync, a worker thread or many turns, and the procedures that wait for them."""
