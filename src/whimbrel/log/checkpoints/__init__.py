"""Checkpoints: a node's state after one seq, stored in the log's folder so that older segments may be cut (removed).

``codec`` is the file format. ``folder`` writes and verifies checkpoints, keeps the last two, and finds the newest valid
one. ``copying`` copies them to the folder of an export. ``waiting`` counts the queue of each absent session.
"""
