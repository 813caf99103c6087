"""Where ThinKV's kinds of thought part: minima of the density of sparsity over a model's own chains (2510.01290)."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.stats import gaussian_kde
from torch import Tensor

from tiercache.cache import TieredCache
from tiercache.engine import Engine
from tiercache.errors import PolicyError
from tiercache.policy import parse_policy
from tiercache.requests import Request


@dataclass
class _Listener:
    """A probe that notes each decode step's sparsity, mean over the scorer's layers."""

    found: list[float] = field(default_factory=list)

    def __call__(self, cache: TieredCache, first: int, keys: Sequence[str], hidden: Tensor) -> None:
        sparsity = cache.state.planes["sparsity"].mean(-1)
        rows = range(first, first + len(keys))
        self.found += [float(sparsity[row]) for row in rows if cache.tiers[row].generated]


def calibrate(engine: Engine, requests: Sequence[Request], faint: float = 0.01, thought_layers: int = 4) -> list[float]:
    """Sparsities at which the model's steps part into kinds, ascending, while it answers these with its full cache.

    The first of two is the knob `execution_below`, the second `transition_above`. One alone parts two kinds, none means
    that the model's steps are all alike. Where more than two are found, the two where the density is lowest are given.

    Raises:
        PolicyError: fewer than 32 decode steps to learn from.
    """
    watch = {"name": "thinkv", "budget": 1.0, "pack_thoughts": False, "transition_above": 1.0}
    listener = _Listener()
    for _ in engine.run(requests, parse_policy({**watch, "faint": faint, "thought_layers": thought_layers}), listener):
        pass
    if len(listener.found) < 32:
        raise PolicyError(f"calibrate: {len(listener.found)} decode steps; needs 32 or more, better thousands.")
    return minima(listener.found)


def minima(sparsity: Sequence[float]) -> list[float]:
    """At most two local minima of the kernel density, those of lowest density, ascending.

    A minimum in a tail, beyond which less than 2% of the steps lie, parts no kinds.
    """
    values = np.sort(sparsity)
    tail = len(values) // 50
    if np.ptp(values) < 1e-6:
        return []
    grid = np.linspace(values.min(), values.max(), 512)
    density = gaussian_kde(values)(grid)
    inner = [i for i in range(1, 511) if density[i - 1] > density[i] <= density[i + 1]]
    inner = [i for i in inner if values[tail] < grid[i] < values[-1 - tail]]
    lowest = sorted(inner, key=lambda i: density[i])[:2]
    return sorted(float(grid[i]) for i in lowest)
