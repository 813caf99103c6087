"""What is handed to an engine and what comes back: plain data that crosses process boundaries. No torch here."""

from dataclasses import dataclass
from typing import Literal

from tiercache.diagnostics.tier_record import TierRecord
from tiercache.diagnostics.values import Diagnostics
from tiercache.policy import Policy
from tiercache.rendering import Rendering
from tiercache.requests import Completion, RunStats, Sampling

LossKind = Literal["actor_died", "preempted", "stalled", "shard_failed"]


@dataclass(frozen=True)
class ModelFacts:
    """What only loading a model tells, kept with the sweep: it is part of the protocol.

    token_bytes    keys and values of one token, in the type that the model was really loaded in.
    eos            ids that end a sequence. Rows are never padded, so there is no pad token.
    chat_template  first 16 hex digits of its SHA-256; None without one.
    context        longest prompt and output together.
    """

    token_bytes: int
    dtype: str
    eos: tuple[int, ...]
    bos: int | None
    chat_template: str | None
    context: int
    layers: int
    kv_heads: int
    head_dim: int


@dataclass(frozen=True)
class Task:
    """One sample to generate. `key` identifies it to the caller; `prompt` is text not yet rendered, and the answer
    begins with `prefix`, which the model finds written."""

    key: str
    prompt: str
    seed: int
    prefix: str = ""


@dataclass(frozen=True)
class Shard:
    """Samples of one cell that are decoded together: the unit that is handed out, and repeated when it is lost.

    With `diagnostics` each sample is measured against the full cache after the shard has run. `tier_maps`: keys of the
    tasks of which is written down where their tokens lie. `cell`: whose samples these are, for the logs.
    """

    id: str
    policy: Policy
    sampling: Sampling
    rendering: Rendering
    tasks: tuple[Task, ...]
    diagnostics: bool = False
    tier_maps: tuple[str, ...] = ()
    cell: str = ""


@dataclass(frozen=True)
class Done:
    """One finished sample: its text, the prompt as the model saw it, and the engine's own record."""

    key: str
    prompt: str
    text: str
    completion: Completion


@dataclass(frozen=True)
class Refused:
    """One sample that can't be run as asked (too long, no chat template): trying again would not help."""

    key: str
    reason: str


@dataclass(frozen=True)
class ShardStats:
    """What running a shard cost and where it ran. `worker` names the process; times are seconds since the epoch.

    copy_bytes_per_s: the bandwidth of its device's memory, measured there.
    """

    stats: RunStats
    worker: str
    host: str
    device: str
    started: float
    ended: float
    copy_bytes_per_s: float | None = None


@dataclass(frozen=True)
class Diagnosed:
    """How a finished sample's cache compares with the full one."""

    key: str
    diagnostics: Diagnostics


@dataclass(frozen=True)
class Mapped:
    """Where a finished sample's tokens lay. `tokens` and their `texts`, decoded one by one: prompt and output."""

    key: str
    record: TierRecord
    tokens: tuple[int, ...]
    texts: tuple[str, ...]


Item = Done | Refused | ShardStats | Diagnosed | Mapped


@dataclass(frozen=True)
class Arrived:
    """The pool's news: an item of a shard."""

    shard: Shard
    item: Item


@dataclass(frozen=True)
class Ended:
    """A shard has nothing more to send."""

    shard: Shard


@dataclass(frozen=True)
class Lost:
    """A shard ended before its time; items that arrived before stand.

    blamed  this shard was running, so its unfinished samples have used up one attempt. A shard that only waited behind
            the one to blame has not.
    kind    what happened to its worker; but for `shard_failed`, an exception, it is gone and was replaced.
    """

    shard: Shard
    reason: str
    blamed: bool
    kind: LossKind

    @property
    def died(self) -> bool:
        return self.kind != "shard_failed"


Event = Arrived | Ended | Lost
