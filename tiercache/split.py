"""A forward pass over a model whose decoder layers lie on several GPUs; see `tiercache.blocks` for which lies where.

Keys and values of all layers stay together, at home: the cache, its events and every scorer see one device, as ever.
Hidden states travel from block to block, and each layer away from home sends its queries, keys and values there and
takes attention's output back. All of it goes through `move`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tiercache.step import Step


def move(x: Tensor, device: torch.device) -> Tensor:
    """The tensor on that device; itself if it is there."""
    return x if x.device == device else x.to(device, non_blocking=True)


@dataclass(frozen=True)
class Split:
    """Where things lie: `layers` one device each; `home` everything else, keys and values too."""

    home: torch.device
    layers: tuple[torch.device, ...]

    def enter(self, layer: int, *states: Tensor) -> list[Tensor]:
        """What a layer works on, brought to it."""
        return [move(state, self.layers[layer]) for state in states]


class AwayStep:
    """A step at home for layers that may be elsewhere."""

    def __init__(self, step: Step, split: Split) -> None:
        self.step, self.split = step, split
        self.hidden_layers = step.hidden_layers

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        home, there = self.split.home, self.split.layers[layer]
        out = self.step.attend(layer, move(query, home), move(key, home), move(value, home), scaling)
        return move(out, there)

    def layer_output(self, layer: int, hidden: Tensor) -> None:
        self.step.layer_output(layer, move(hidden, self.split.home))

    def finish(self) -> None:
        self.step.finish()


def spread(sizes: Sequence[int], devices: Sequence[torch.device]) -> Split:
    """Blocks of so many layers on these devices, the first of which is home."""
    places = (device for size, device in zip(sizes, devices, strict=True) for _ in range(size))
    return Split(devices[0], tuple(places))
