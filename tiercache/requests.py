"""What goes into the engine and what comes out. Plain data: no torch, can cross process boundaries."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from tiercache.errors import RequestError
from tiercache.ledger import SequenceBytes


@dataclass(frozen=True)
class Sampling:
    """Decoding of one sequence; temperature 0 is greedy.

    Raises:
        RequestError: temperature below 0, top_p outside (0, 1], max_new_tokens below 1; or not numbers.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    max_new_tokens: int = 512

    def __post_init__(self) -> None:
        check_number("temperature", self.temperature, "0 (greedy) or more", lambda x: 0 <= x < math.inf)
        check_number("top_p", self.top_p, "above 0 and at most 1", lambda x: 0 < x <= 1)
        check_whole("max_new_tokens", self.max_new_tokens, 1)


def check_number(name: str, value: object, allowed: str, good: Callable[[float], bool]) -> None:
    """Raises RequestError unless the value is a number, and a good one."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not good(value):
        raise RequestError(f"{name}: is a number, {allowed} (got {value!r}).")


def check_whole(name: str, value: object, least: int) -> None:
    """Raises RequestError unless the value is a whole number from `least` on."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise RequestError(f"{name}: is a whole number from {least} on (got {value!r}).")


@dataclass(frozen=True)
class Request:
    """One sequence to generate. `key` identifies it to the caller; `seed` feeds sampling and random eviction."""

    key: str
    prompt: tuple[int, ...]
    sampling: Sampling
    seed: int = 0


@dataclass(frozen=True)
class Completion:
    """One finished sequence.

    tokens   generated ids; an end-of-sequence token is included.
    ttft_s   seconds from the start of its prefill to its first token. wall_s: to its last.
    """

    key: str
    tokens: tuple[int, ...]
    finish: Literal["eos", "length"]
    prompt_tokens: int
    ttft_s: float
    wall_s: float
    ledger: SequenceBytes


@dataclass(frozen=True)
class RunStats:
    """What an engine measured over one run.

    decode_s counts decode steps only, prefill_s prefills only. Step percentiles are over decode steps, whatever
    their batch. `device_peak_bytes` is the device's own peak above the loaded weights; None on a CPU.
    `decode_read_bytes`: the weights at each step, and the keys and values that each row holds after it, wherever they
    are read. `transfer_s`: time in which tiers' bytes crossed the bus; None where there is no bus.
    """

    sequences: int
    prefill_tokens: int
    prefill_s: float
    decode_tokens: int
    decode_s: float
    decode_steps: int
    step_p50_s: float
    step_p99_s: float
    ttft_p50_s: float
    max_rows: int
    allocated_bytes_peak: int
    device_peak_bytes: int | None
    bytes_to_host: int
    bytes_to_device: int
    decode_read_bytes: int
    transfer_s: float | None
