"""Waiting: what an answer waits for (the disk, a thread, a turn of the event loop), and procedures that wait for it."""
