"""Everything that berth needs from numba: kernels, their cache on disk, structs and functions by address."""
