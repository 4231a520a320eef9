"""The log: all facts that a node accepted, in order; facts that must survive a crash are fsynced before the ack.

``layout`` names the files of the directory, ``writer`` appends, ``reader`` reads segments, ``export`` converts them to
Parquet. ``compaction`` and ``retention`` keep the Parquet small, ``importing`` reads JSON lines. ``verification`` and
``stats`` read the whole log. Only ``columns`` and the modules that import it load Arrow.
"""
