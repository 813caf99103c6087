"""How fast this machine's memory is, by copying: what a decode step's time is held against."""

import time
from functools import cache

import torch

BYTES = 2**26  # beyond every cache that a processor has for itself
TRIES = 5


@cache
def copy_bandwidth(device: torch.device, size: int = BYTES) -> float:
    """Bytes/s that a copy within the device's memory reads and writes, the best of a few; measured once a process."""
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    best = float("inf")
    for _ in range(TRIES):
        start = time.perf_counter()
        target.copy_(source)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - start)
    return 2 * size / best
