"""The log: what a node accepted, in order, on disk before it is acknowledged.

``layout`` is the map of the directory, ``writer`` appends, ``reader`` reads segments, ``export`` makes Parquet of
them, ``compaction`` and ``retention`` keep that small, ``importing`` takes JSON lines, ``verification`` and ``stats``
look at all of it. Only ``columns`` and what stands on it load Arrow.
"""
