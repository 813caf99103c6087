"""What a byte budget admits: a measured share of the full cache's device bytes, or planned bytes on a GPU."""

from dataclasses import dataclass
from typing import TypeAlias

from db.queries import CellSummary
from jobs.report import bytes_text
from tiercache.capacity import Capacity, capacity
from tiercache.catalog import SIGNALS
from tiercache.errors import PolicyError, SpecError, TierCacheError
from tiercache.policy import Policy, parse_policy
from tiercache.policy_text import policy_entry
from tiercache.shapes import ModelShape

SHORTEST_SEGMENT = 32  # counting shorter ones over 100,000 tokens takes minutes
SAME_SHARE = 0.02  # of tokens kept: what a plan may lie below the measurement and still be the same policy
SAME_LENGTH = 1.25


@dataclass(frozen=True)
class Share:
    """At most this share of what the full cache holds on the device, as measured: mean over decode steps."""

    most: float

    def __post_init__(self) -> None:
        if not 0 < self.most <= 1:
            raise SpecError(f"budget: a share lies above 0 and is at most 1 (got {self.most:g}); or give bytes: 8GiB.")

    def __str__(self) -> str:
        return f"{100 * self.most:g}% of the full cache's device bytes"


@dataclass(frozen=True)
class Room:
    """So many bytes on the GPU for the keys and values of all rows; what a row takes is planned, at its peak."""

    bytes: int
    model: str
    shape: ModelShape
    context: int
    prompt: int
    rows: int

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise SpecError(f"batch: is a whole number from 1 on (got {self.rows}).")

    def __str__(self) -> str:
        rows = "1 row" if self.rows == 1 else f"{self.rows:,} rows"
        return f"{bytes_text(self.bytes)} for {rows} of {self.context:,} tokens of {self.model}"


Budget: TypeAlias = Share | Room


@dataclass(frozen=True)
class Size:
    """What one policy takes of a budget.

    fits     None where it isn't known, and `why` says why.
    device   device bytes that count: mean bytes of a sequence (measured) or of all rows at the peak (planned).
    share    of the full cache's, in 0..1 or above.
    host     bytes in host memory: mean of a sequence, or of all rows.
    bus      bytes a decode step of one sequence sends over the bus, or that were moved for each decoded token.
    differs  why a loss that was measured may not be the one at this size; empty where it is.
    """

    fits: bool | None
    device: float | None = None
    share: float | None = None
    host: float | None = None
    bus: float | None = None
    why: str = ""
    differs: str = ""


def size_of(cell: CellSummary, budget: Budget) -> Size:
    """What the policy of a cell takes of the budget."""
    return _measured(cell, budget) if isinstance(budget, Share) else _planned(cell, budget)


def _measured(cell: CellSummary, budget: Share) -> Size:
    share = cell.resident_share
    if share is None:
        return Size(None, why="no bytes were measured" if cell.n else "no judged sample")
    moved = None
    if cell.bytes_to_host is not None and cell.bytes_to_device is not None and cell.output_tokens and cell.n:
        moved = (cell.bytes_to_host + cell.bytes_to_device) / (cell.output_tokens * cell.n)
    return Size(share <= budget.most, cell.resident_bytes, share, cell.ddr_bytes, moved)


def _planned(cell: CellSummary, budget: Room) -> Size:
    try:
        policy = policy_of(cell.policy)
        found = capacity(budget.shape, policy, budget.context, prompt=budget.prompt)
    except TierCacheError as problem:
        return Size(None, why=f"can't be planned: {problem}")
    device, bus = budget.rows * found.row, sum(found.bus(found.t1_read))
    share, host = found.row / found.full, budget.rows * found.t1
    return Size(device <= budget.bytes, device, share, host, bus, differs=_differs(cell, policy, found))


def policy_of(label: str) -> Policy:
    """The policy that a label names.

    Raises:
        PolicyError: it can't be read, or it names a scorer in a file: a label in a database must not run code.
    """
    entry = policy_entry(label)
    scorer, segment = entry.get("scorer"), entry.get("segment")
    if scorer is not None and scorer not in SIGNALS:
        raise PolicyError("scorer: one of a user's own can't be planned from its label.")
    if isinstance(segment, int) and segment < SHORTEST_SEGMENT:
        raise PolicyError(f"segment: can be planned from {SHORTEST_SEGMENT} tokens on (it is {segment}).")
    return parse_policy(entry)


def _differs(cell: CellSummary, policy: Policy, found: Capacity) -> str:
    kept = 1 - found.tokens.evicted_end / found.tokens.full_end
    if cell.kept_share is None:
        return "how many tokens it kept was not measured"
    if kept < cell.kept_share - SAME_SHARE:
        return f"it would keep {100 * kept:.0f}% of the tokens, and {100 * cell.kept_share:.0f}% where it was measured"
    read = policy.reading.read_budget
    length = (cell.full_bytes or 0) / (cell.kv_bytes_per_token or 1) + (cell.output_tokens or 0) / 2  # at the end
    if read is not None and read.tokens is not None and found.context > SAME_LENGTH * length:
        return f"it reads {read.tokens} tokens whatever the length, and was measured on shorter texts"
    return ""
