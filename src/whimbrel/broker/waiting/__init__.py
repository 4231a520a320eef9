"""Waiting: the disk, threads and turns that an answer waits for, and the procedures that wait for them."""
