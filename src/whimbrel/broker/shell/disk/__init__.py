"""Disk access: the log, its view (a stored snapshot of the state), the heartbeat file, and their writer threads."""
