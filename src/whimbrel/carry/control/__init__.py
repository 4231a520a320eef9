"""Control data of a campus: its segments, the keys that sign them, the clock, and the ids of topics."""
