"""How kernels are compiled, cached and warmed, and the parts that all share: columns, text, numbers."""
