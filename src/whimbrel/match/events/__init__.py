"""Events as flat arrays for the kernels (compiled functions).

They are made from bodies, mappings of attributes or Arrow columns.
"""
