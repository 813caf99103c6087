"""GPUs and the bandwidths around them, as data for bounds. Nothing here asks a device."""

import math
from dataclasses import dataclass

from tiercache.requests import check_number, check_whole

GPU_USABLE = 0.9  # the rest is left to activations and the allocator


@dataclass(frozen=True)
class Machine:
    """A GPU and what it is connected to; bandwidths in GB/s (1e9 bytes), the bus's in one direction.

    tflops  1e12 operations a second in dense bfloat16 products, sums in float32. Only prices ask for them.

    Raises:
        RequestError: a number isn't above 0.
    """

    gpu_bytes: int = 80 * 2**30
    hbm_gbps: float = 3350.0
    bus_gbps: float = 64.0
    host_gbps: float = 300.0
    tflops: float = 989.0

    def __post_init__(self) -> None:
        check_whole("gpu", self.gpu_bytes, 1)
        for name in ("hbm_gbps", "bus_gbps", "host_gbps", "tflops"):
            unit = "TFLOP/s" if name == "tflops" else "GB/s"
            check_number(name, getattr(self, name), f"above 0, in {unit}", lambda x: 0 < x < math.inf)


# Nominal figures of the vendors. The host's is that of the servers and the desktop such cards are usually put into.
GPUS: dict[str, Machine] = {
    "H100-80GB": Machine(),
    "A100-80GB": Machine(hbm_gbps=2039.0, bus_gbps=32.0, host_gbps=200.0, tflops=312.0),
    "RTX4090-24GB": Machine(24 * 2**30, 1008.0, 32.0, 80.0, 165.0),
}

# Memory of an accelerator by the name that Ray gives it, the smaller one where a name has two.
ACCELERATOR_GIB: dict[str, int] = {
    **{"T4": 16, "V100": 16, "P100": 16, "P4": 8, "K80": 12, "L4": 24, "A10G": 24, "L40S": 48},
    **{"A100": 40, "A100-40G": 40, "A100-80G": 80, "H100": 80, "H20": 96, "H200": 141, "B200": 180},
}


def gpus_for(needed: int, gpu_bytes: int) -> int:
    """GPUs of that size that hold so many bytes beside activations and what the allocator keeps."""
    return math.ceil(needed / (gpu_bytes * GPU_USABLE))
