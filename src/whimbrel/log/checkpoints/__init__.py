"""Checkpoints: the state of a node's fold at one number, kept in the log's folder so that older segments may be cut.

``codec`` is the file's format, ``folder`` writes, reads back, keeps the last two and finds the newest sound one.
"""
