"""The hot loops of the packed index, compiled by numba; they work on flat arrays."""
