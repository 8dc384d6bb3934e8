"""Sizes that kernels hold, readable without Triton."""

__all__ = ["MAX_DROPOUT", "MAX_NORM_ELEMENTS"]

# A norm's backward keeps a row, its gradient, the weight and two sums in registers, 16 elements of
# each a thread; a row of 16384 would need more registers than 1024 threads have.
MAX_NORM_ELEMENTS = 8192

# Above, an element stays so seldom that taking p to 16 bits would shift the mean by one in 1000.
MAX_DROPOUT = 0.99
