"""Generated logs: a log of any size from a seed, written on Spark."""
