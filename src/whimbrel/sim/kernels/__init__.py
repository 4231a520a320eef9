"""The fast twins: numba kernels, each under a differential test against its plain Python reference."""
