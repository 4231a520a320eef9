"""State: what a restart knows again, and the queue of facts that wait for the disk."""
