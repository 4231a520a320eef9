"""Backends, one translator per file: each turns the same tree into code for its engine, and agrees with ``python``."""
