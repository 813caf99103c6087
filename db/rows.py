"""One finished thing each, as plain data: what actors send and the writer stores.

Frozen, slotted and free of SQLAlchemy, so that a row can be pickled through Ray by a process that has no database.
Byte counts are the ledger's logical bytes of one sequence; tokens per tier are positions per KV head.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, get_args

from db.errors import StorageError

Outcome = Literal["correct", "wrong", "no_answer", "truncated", "failed"]
FinishReason = Literal["eos", "length", "error"]
SweepState = Literal["running", "paused", "finished", "interrupted", "cancelled", "failed"]
PeakSource = Literal["ledger", "device"]

OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
FINISH_REASONS: tuple[FinishReason, ...] = get_args(FinishReason)
SWEEP_STATES: tuple[SweepState, ...] = get_args(SweepState)
PEAK_SOURCES: tuple[PeakSource, ...] = get_args(PeakSource)

# Seeds and byte counts live in signed 64-bit columns in both databases.
MAX_INTEGER = 2**63 - 1


def utc_now() -> datetime:
    """Return the present moment as an aware UTC datetime."""
    return datetime.now(UTC)


def require_member(field_name: str, value: object, allowed: Collection[str]) -> None:
    """Raise StorageError unless `value` is one of `allowed`."""
    if value not in allowed:
        raise StorageError(f"{field_name}={value!r} can't be stored; allowed: {', '.join(allowed)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CellRow:
    """One point of the grid, and how many samples the sweep that registers it expects of it."""

    fingerprint: str
    model: str
    benchmark: str
    policy: str  # display label, e.g. "h2o budget=0.5 pin_prompt"
    policy_name: str  # preset, e.g. "h2o"
    config: Mapping[str, Any]  # the whole resolved configuration
    protocol: str  # hash of all but policy and engine: cells compare only where it is equal
    kv_bytes_per_token: int
    expected_samples: int
    created_at: datetime = field(default_factory=utc_now)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRow:
    """One finished (cell, problem, repeat). The measures may be None where the sample failed."""

    fingerprint: str
    problem_id: str
    repeat: int
    seed: int
    outcome: Outcome
    finish_reason: FinishReason
    prompt: str
    output: str
    reference: str
    attempt: int = 1
    score: float | None = None  # 0 to 1; None where the sample failed
    grader: str | None = None  # the rule that judged it, with its version
    extracted: str | None = None
    error: str | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    ttft_s: float | None = None
    wall_s: float | None = None
    hbm_tokens: int | None = None  # at the end; the four tiers sum to the tokens seen
    ddr_tokens: int | None = None
    packed_tokens: int | None = None
    evicted_tokens: int | None = None
    hbm_bytes_mean: float | None = None  # mean over decode steps
    hbm_bytes_peak: int | None = None
    ddr_bytes_mean: float | None = None
    packed_bytes_mean: float | None = None
    evicted_bytes_end: int | None = None
    full_bytes_mean: float | None = None  # what the full cache would have held, mean over the same steps
    full_bytes_end: int | None = None
    metadata_bytes_peak: int | None = None  # scores and other slot fields
    shard_id: str | None = None
    finished_at: datetime = field(default_factory=utc_now)

    def __post_init__(self) -> None:
        require_member("outcome", self.outcome, OUTCOMES)
        require_member("finish_reason", self.finish_reason, FINISH_REASONS)
        if not -MAX_INTEGER <= self.seed <= MAX_INTEGER:
            raise StorageError(
                f"seed={self.seed} can't be stored; allowed: a signed 64-bit integer; derive seeds below 2**63"
            )

    @property
    def key(self) -> tuple[str, str, int]:
        """Return what identifies the sample: (fingerprint, problem_id, repeat)."""
        return self.fingerprint, self.problem_id, self.repeat


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnosticRow:
    """A finished sample against the full cache on the same tokens. None where the text was too short to say."""

    fingerprint: str
    problem_id: str
    repeat: int
    steps: int  # decode steps
    fmm_acc: float | None = None  # future missed mass: share of coming attention on evicted tokens
    fmm_fp: float | None = None  # on evicted or quantised ones
    fmm_acc_sinks: float | None = None  # the same with the first tokens counted
    fmm_fp_sinks: float | None = None
    churn: float | None = None
    lir_rescued: int = 0  # episodes
    lir_eligible: int = 0
    recall: float | None = None
    output_error: float | None = None
    kl: float | None = None  # nats
    first_divergent: int | None = None  # None: no token differs
    detail: Mapping[str, Any] = field(default_factory=dict)
    finished_at: datetime = field(default_factory=utc_now)


@dataclass(frozen=True, slots=True, kw_only=True)
class TierMapRow:
    """Where each token of a finished sample lay while it ran. Tokens are those of prompt and output together."""

    fingerprint: str
    problem_id: str
    repeat: int
    steps: int  # decode steps
    prompt_tokens: int
    tokens: int
    looks: int  # moments at which it was looked at
    layers: int
    kv_heads: int
    blob: bytes  # made by `db.tier_codec.pack`
    no_importance: str | None = None  # why the tokens have no score of the policy's
    finished_at: datetime = field(default_factory=utc_now)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRow:
    """One call of an engine: several samples of one cell decoded together on one device."""

    id: str
    fingerprint: str
    sweep_id: str
    actor: str
    host: str
    device: str
    started_at: datetime
    finished_at: datetime
    samples: int
    prefill_tokens: int
    prefill_s: float
    decode_tokens: int
    decode_s: float
    decode_steps: int
    tpot_p50_s: float | None = None
    tpot_p99_s: float | None = None
    ttft_p50_s: float | None = None
    max_rows: int | None = None  # largest running batch
    allocated_bytes_peak: int | None = None
    device_peak_bytes: int | None = None
    device_peak_source: PeakSource = "ledger"
    bytes_to_host: int = 0
    bytes_to_device: int = 0
    decode_read_bytes: int | None = None  # weights, keys and values that the decode steps read
    copy_bytes_per_s: float | None = None  # what the device's memory copies, read and written
    transfer_s: float | None = None  # None where there is no bus
    exclusive: bool = True  # no other engine on that node: only then is throughput its own

    def __post_init__(self) -> None:
        require_member("device_peak_source", self.device_peak_source, PEAK_SOURCES)


@dataclass(frozen=True, slots=True, kw_only=True)
class GradeRow:
    """A new verdict on a stored generation; nothing else of the sample changes."""

    fingerprint: str
    problem_id: str
    repeat: int
    outcome: Outcome
    extracted: str | None
    score: float | None = None
    grader: str | None = None

    def __post_init__(self) -> None:
        require_member("outcome", self.outcome, OUTCOMES)
