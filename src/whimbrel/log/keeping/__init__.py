"""Keeping a log within its bounds: which readers still need it, what may go, and the cutting itself.

``readers`` are those who registered, ``plan`` decides (pure), ``cutting`` looks at the disk and removes segments.
"""
