"""What goes into the engine and what comes out. Plain data: no torch, can cross process boundaries."""

from dataclasses import dataclass
from typing import Literal

from tiercache.ledger import SequenceBytes


@dataclass(frozen=True)
class Sampling:
    """Decoding of one sequence; temperature 0 is greedy."""

    temperature: float = 0.0
    top_p: float = 1.0
    max_new_tokens: int = 512


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
