"""The data pipeline: the log, by the million, on Spark.

Rule: a table is a file, and its transform is ``DataFrame -> DataFrame``: no session, no path, no ``collect`` inside.
Rule: ``sessions`` makes the only SparkSession we make; ``source`` works in anybody's.
"""
