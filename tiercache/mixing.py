"""A hash on int64 tensors: random numbers that depend on nothing but what they are asked for."""

from torch import Tensor


def mix(x: Tensor) -> Tensor:
    """The finaliser of splitmix64 on int64 tensors (wrapping multiplication, logical shifts)."""
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * -0x40A7B892E31B1A47
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * -0x6B2FB644ECCEEE15
    return x ^ ((x >> 31) & 0x1FFFFFFFF)
