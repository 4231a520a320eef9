"""Backends of the filter language, one per file: each turns a filter's tree into code for its engine.

All agree with ``python``, the reference.
"""
