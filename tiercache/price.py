"""The least GPU time that a cell can take on one card: a roofline, so no run is faster. No torch here.

Prefills are bound by arithmetic, decode steps by the slowest of HBM, bus, host memory and arithmetic. What a sequence
holds is its mean over its decoding, by the code that the cache obeys. Launches, latencies, loading, sampling, uneven
batches, scores and the policy's own moves aren't counted.
"""

from dataclasses import dataclass

from tiercache.capacity import Capacity
from tiercache.footprint import footprint
from tiercache.gpus import Machine
from tiercache.policy import Policy
from tiercache.shapes import ELEMENT_BYTES, ModelShape

# In Python's notation, as in `tiercache.capacity`; held is a row's mean bytes over its decoding.
PRICE_FORMULAS: dict[str, str] = {
    "prefill_s": "prompts * (2 * layer_params * prompt + 2 * layers * q_heads * head_dim * prompt ** 2) / flops",
    "row_steps": "samples * (new - 1)",
    "hbm_s": "row_steps * (weight_reads / rows + held_device_reads) / hbm",
    "bus_s": "row_steps * held_bus / bus",
    "host_s": "row_steps * held_host_reads / host",
    "arithmetic_s": "row_steps * 2 * weight_reads / element / flops",
    "gpu_hours": "(prefill_s + max(hbm_s, bus_s, host_s, arithmetic_s)) / 3600",
}


@dataclass(frozen=True)
class Work:
    """Tokens of a cell.

    prompts  different ones; equal ones are prefilled once.
    samples  generations.
    prompt   tokens of one.
    new      tokens that a generation has in the mean; `most_new`: for how many room must be reserved.
    """

    prompts: int
    samples: int
    prompt: int
    new: float
    most_new: int


@dataclass(frozen=True)
class Price:
    """Least GPU time of a cell on one card, in seconds; `channels`: of decoding, the longest decides."""

    rows: int
    prefill_s: float
    channels: dict[str, float]

    @property
    def seconds(self) -> float:
        return self.prefill_s + max(self.channels.values())

    @property
    def hours(self) -> float:
        return self.seconds / 3600

    @property
    def bound_by(self) -> str:
        """What decides."""
        slowest = max(self.channels, key=self.channels.__getitem__)
        return "prefill" if self.prefill_s > self.channels[slowest] else slowest


def at_length(shape: ModelShape, policy: Policy, dtype: str, prompt: int, new: int, machine: Machine) -> Capacity:
    """The capacity of a sequence with so many new tokens; the last one's keys and values are never written."""
    tokens = footprint(policy, prompt, max(0, new - 1), shape.sizes(policy, dtype))
    context = prompt + max(0, new - 1)
    return Capacity(shape, policy, context, tokens, dtype, policy.storage.t1_read, machine)


def price(shape: ModelShape, policy: Policy, dtype: str, work: Work, most_rows: int, machine: Machine) -> Price | None:
    """The price of a cell; None where the weights' size isn't known, or model and one sequence don't fit the card.

    Args:
        most_rows: decoded together by what the sweep says; as many of them are as fit the card.
    """
    room = at_length(shape, policy, dtype, work.prompt, work.most_new, machine)
    if not room.most_rows or room.weight_reads is None or most_rows < 1:
        return None
    rows = min(most_rows, room.most_rows, work.samples)
    mean = at_length(shape, policy, dtype, work.prompt, int(work.new), machine).held()
    flops = machine.tflops * 1e12
    attention = 2 * shape.layers * shape.q_heads * shape.head_dim * work.prompt**2
    prefill = work.prompts * (2 * layer_params(shape) * work.prompt + attention) / flops
    steps = work.samples * max(0.0, work.new - 1)
    channels = {
        "HBM": steps * (room.weight_reads / rows + mean.device) / (machine.hbm_gbps * 1e9),
        "bus": steps * mean.bus / (machine.bus_gbps * 1e9),
        "host memory": steps * mean.host / (machine.host_gbps * 1e9),
        "arithmetic": steps * 2 * room.weight_reads / ELEMENT_BYTES[shape.resolve(dtype)] / flops,
    }
    return Price(rows, prefill, channels)


def layer_params(shape: ModelShape) -> int:
    """Numbers in the decoder layers; a prefill computes the vocabulary's scores for its last token alone."""
    params = (shape.weight_bytes or 0) // ELEMENT_BYTES[shape.dtype]
    return max(0, params - shape.tables * shape.vocab * shape.hidden)
