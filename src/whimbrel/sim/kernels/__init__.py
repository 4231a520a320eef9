"""The fast twins: numba kernels of what its plain reference says, each under a differential test against it."""
