"""Events in the flat arrays that the kernels read, made from bodies, Python attributes or an Arrow column."""
