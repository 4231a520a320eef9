"""The process of a command: its priority, its memory, its Spark session."""
