"""Events as the kernels read them, from bodies, Python attributes or an Arrow column."""
