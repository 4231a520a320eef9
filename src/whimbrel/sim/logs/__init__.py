"""Made-up logs: a log of any size from a seed, made on Spark."""
