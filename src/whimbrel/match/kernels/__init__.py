"""The hot loops of the packed index, compiled by numba over flat arrays."""
