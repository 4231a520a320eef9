"""One translator a file: each turns the same tree into what its engine runs, and must agree with ``python``."""
