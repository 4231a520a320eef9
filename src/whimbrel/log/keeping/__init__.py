"""Log truncation: remove old segments, so that the log stays within its bounds (age, bytes, free disk).

``readers`` are the registrations of programs that still need the log. ``plan`` decides (pure) which segments to remove.
``cutting`` reads the state of the disk and removes segments.
"""
