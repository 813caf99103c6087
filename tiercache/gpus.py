"""GPUs and the bandwidths around them, as data for bounds. Nothing here asks a device."""

import math
from dataclasses import dataclass

from tiercache.requests import check_number, check_whole

GPU_USABLE = 0.9  # the rest is left to activations and the allocator


@dataclass(frozen=True)
class Machine:
    """A GPU and what it is connected to; bandwidths in GB/s (1e9 bytes), the bus's in one direction.

    Raises:
        RequestError: a number isn't above 0.
    """

    gpu_bytes: int = 80 * 2**30
    hbm_gbps: float = 3350.0
    bus_gbps: float = 64.0
    host_gbps: float = 300.0

    def __post_init__(self) -> None:
        check_whole("gpu", self.gpu_bytes, 1)
        for name in ("hbm_gbps", "bus_gbps", "host_gbps"):
            check_number(name, getattr(self, name), "above 0, in GB/s", lambda x: 0 < x < math.inf)


# Nominal figures of the vendors. The host's is that of the servers and the desktop such cards are usually put into.
GPUS: dict[str, Machine] = {
    "H100-80GB": Machine(),
    "A100-80GB": Machine(hbm_gbps=2039.0, bus_gbps=32.0, host_gbps=200.0),
    "RTX4090-24GB": Machine(24 * 2**30, 1008.0, 32.0, 80.0),
}
