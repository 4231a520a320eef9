"""Kernels of the packed index: functions that numba compiles, over flat arrays."""
