"""Bytes of tokens in each form, for placement under a byte budget, for admission and for plans. No torch here."""

from dataclasses import dataclass

from tiercache.parts import Storage


@dataclass(frozen=True)
class Sizes:
    """Bytes over all layers and KV heads.

    token    one token's keys and values in the model's own type.
    window   tokens that are quantised together (1 where each is quantised for itself).
    packed   one such window's keys and values in T2, scales and zero points included.
    """

    token: int
    packed: int
    window: int = 1

    def packed_bytes(self, tokens: int) -> int:
        """Bytes of this many quantised tokens, whole windows."""
        return tokens // self.window * self.packed


def sizes(storage: Storage, window: int, layers: int, kv_heads: int, head_dim: int, itemsize: int) -> Sizes:
    """Sizes for a model's shape; `itemsize` is the bytes of one element in the model's type."""
    vectors = 2 * layers * kv_heads
    return Sizes(vectors * head_dim * itemsize, vectors * (head_dim + 2 * 4))
