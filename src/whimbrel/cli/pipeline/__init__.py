"""``whimbrel pipeline``: the data pipeline on Spark."""
