"""Shell: sockets, the clock, the disk and threads around the core."""
