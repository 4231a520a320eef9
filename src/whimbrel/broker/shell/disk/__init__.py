"""The disk: the log, its view and the heartbeat, and the threads that write them."""
