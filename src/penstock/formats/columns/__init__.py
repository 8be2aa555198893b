"""The types that decoded columns can have, and the arrays that kernels fill to make them."""
