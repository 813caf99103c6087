"""Bytes of tokens in each form, for placement under a byte budget, for admission and for plans. No torch here."""

from dataclasses import dataclass

from tiercache.errors import PolicyError
from tiercache.parts import Storage

GRID_BYTES = {"float32": 4, "float16": 2}


@dataclass(frozen=True)
class Sizes:
    """Bytes over all layers and KV heads.

    token    one token's keys and values in the model's own type.
    window   tokens that are quantised together (1 where each is quantised for itself).
    packed   one such window's keys and values in T2, scales and zero points included.
    coarse   the same in the format of transitions.
    """

    token: int
    packed: int
    window: int = 1
    coarse: int = 0

    def packed_bytes(self, tokens: int, coarse: int = 0) -> int:
        """Bytes of this many quantised tokens, whole windows, `coarse` of them in the format of transitions."""
        return (tokens - coarse) // self.window * self.packed + coarse * self.coarse


def sizes(storage: Storage, window: int, layers: int, kv_heads: int, head_dim: int, itemsize: int) -> Sizes:
    """Sizes for a model's shape; `itemsize` is the bytes of one element in the model's type.

    Raises:
        PolicyError: the head size can't be divided as the storage asks.
    """
    _check_head(storage, head_dim)
    heads = layers * kv_heads
    bits = storage.element_bits
    number = GRID_BYTES[storage.grids] * (1 if storage.packed_bits == "fp8" else 2)  # a range: scale, or scale and zero
    codes = head_dim * bits // 8
    token = codes + head_dim // storage.group_of(head_dim) * number
    full = 2 * heads * head_dim * itemsize
    if storage.key_axis == "token":
        coarse = storage.coarse
        less = sizes(coarse, 1, layers, kv_heads, head_dim, itemsize).packed if coarse else 0
        return Sizes(full, heads * 2 * token, coarse=less)
    ranges = head_dim // 2 if storage.rope_pairs else head_dim
    # A window's grid is dealt out to its tokens in whole numbers; nothing is left over unless the window is long and
    # the head small.
    share = -(-ranges * number // GRID_BYTES[storage.grids] // window) * GRID_BYTES[storage.grids]
    return Sizes(full, heads * window * (codes + share + token), window)


def _check_head(storage: Storage, head_dim: int) -> None:
    bits, group = storage.packed_bits, storage.group_of(head_dim)
    if head_dim % group:
        raise PolicyError(
            f"group: {group} does not divide the model's head size of {head_dim}; use a divisor, or leave it out for "
            "the whole head."
        )
    if bits != "fp8" and head_dim * bits % 8:
        raise PolicyError(f"packed_bits: {head_dim} codes of {bits} bits don't fill whole bytes; use 8 or fp8.")
    if storage.rope_pairs and head_dim % 2:
        raise PolicyError(f"rope_pairs: the model's head size of {head_dim} is odd; leave it out.")
