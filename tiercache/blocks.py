"""How a model that is too large for one GPU is dealt out to several: decoder layers, in contiguous blocks. No torch.

One GPU is home: embeddings, output projection, keys and values of all layers, and as many of the first layers as the
others don't hold. The others are filled first and evenly, so that what is left at home is room for the cache. Layers
run one after the other wherever they lie, so an even spread would be no faster.
"""

import math
from dataclasses import dataclass
from itertools import accumulate

from tiercache.errors import ResourceError
from tiercache.gpus import GPU_USABLE
from tiercache.shapes import ELEMENT_BYTES, ModelShape


@dataclass(frozen=True)
class Weights:
    """Bytes of a model's weights: of one decoder layer, the largest, and of all that isn't one."""

    layers: int
    layer: int
    rest: int


def weights_of(shape: ModelShape, dtype: str = "auto") -> Weights | None:
    """The weights of a shape; None where their size isn't known."""
    whole = shape.weights_as(dtype)
    if whole is None:
        return None
    rest = min(whole, shape.tables * shape.vocab * shape.hidden * ELEMENT_BYTES[shape.resolve(dtype)])
    return Weights(shape.layers, -(-(whole - rest) // shape.layers), rest)


@dataclass(frozen=True)
class Blocks:
    """How many layers each GPU holds, in the layers' order; the first GPU is home."""

    sizes: tuple[int, ...]

    def places(self) -> tuple[int, ...]:
        """The GPU of each layer."""
        return tuple(gpu for gpu, size in enumerate(self.sizes) for _ in range(size))

    def starts(self) -> tuple[int, ...]:
        """The first layer of each GPU."""
        return tuple(accumulate(self.sizes[:-1], initial=0))

    def bytes(self, weights: Weights) -> tuple[int, ...]:
        """Of weights, on each GPU."""
        first, *others = (size * weights.layer for size in self.sizes)
        return (first + weights.rest, *others)


def deal(weights: Weights, gpus: int, gpu_bytes: int, usable: float = GPU_USABLE) -> Blocks:
    """The layers over so many GPUs of that size. Whether home has room for its share isn't asked."""
    if gpus == 1:
        return Blocks((weights.layers,))
    away = min(weights.layers, (gpus - 1) * (int(gpu_bytes * usable) // weights.layer))
    share, over = divmod(away, gpus - 1)
    return Blocks((weights.layers - away, *(share + (gpu < over) for gpu in range(gpus - 1))))


def gpus_needed(weights: Weights, cache: int, gpu_bytes: int, usable: float = GPU_USABLE) -> int:
    """The fewest GPUs of that size for a model and so many bytes of keys and values.

    Raises:
        ResourceError: no number is enough: a layer, or the cache and what else stays at home, doesn't fit one.
    """
    room = int(gpu_bytes * usable)
    if weights.layer > room or weights.rest + cache > room:
        raise ResourceError(
            f"a GPU of {gpu_bytes / 2**30:g} GiB, {usable:.0%} usable, is too small for a part of this model: a layer "
            f"takes {weights.layer:,} bytes; embeddings and all keys and values, together, {weights.rest + cache:,}."
        )
    first = min(weights.layers, (room - weights.rest - cache) // weights.layer)
    return 1 + math.ceil((weights.layers - first) / (room // weights.layer))
