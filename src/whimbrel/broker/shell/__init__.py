"""Shell: the sockets, clock, disk access and threads around the broker's core, which does no I/O itself."""
