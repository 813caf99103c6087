"""What was measured: each policy of one model, benchmark and protocol beside the full cache."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Engine

from db.differences import ProblemDifferences, problem_differences
from db.queries import CellSummary
from jobs.statistics.margin import Differences

FULL = "full"
EMBEDDED = "reasoner"


@dataclass(frozen=True)
class Evidence:
    """One policy. `found` is None where there is nothing to compare, and `why` says why."""

    cell: CellSummary
    found: Differences | None
    why: str = ""


@dataclass(frozen=True)
class Setting:
    """Cells that may be compared. `full` is None where the full cache has no judged sample under this protocol."""

    model: str
    benchmark: str
    protocol: str
    full: CellSummary | None
    others: tuple[Evidence, ...]


def settings(engine: Engine, cells: Sequence[CellSummary]) -> list[Setting]:
    """The cells by model, benchmark and protocol, in order of coming, each policy compared with the full cache.

    A cell that comes twice, because two sweeps share it, counts once: with the more samples.
    """
    unique: dict[str, CellSummary] = {}
    for cell in cells:
        if cell.fingerprint not in unique or unique[cell.fingerprint].n < cell.n:
            unique[cell.fingerprint] = cell
    groups: dict[tuple[str, str, str], list[CellSummary]] = {}
    for cell in unique.values():
        groups.setdefault((cell.model, cell.benchmark, cell.protocol), []).append(cell)
    return [_setting(engine, rows) for rows in groups.values()]


def _setting(engine: Engine, rows: Sequence[CellSummary]) -> Setting:
    full = next((cell for cell in rows if cell.policy_name == FULL and cell.n), None)
    others = [cell for cell in rows if cell.policy_name != FULL]
    found: dict[str, ProblemDifferences] = {}
    if full is not None:
        found = problem_differences(engine, full.fingerprint, [cell.fingerprint for cell in others])
    compared = tuple(_evidence(cell, full, found.get(cell.fingerprint)) for cell in others)
    return Setting(rows[0].model, rows[0].benchmark, rows[0].protocol, full, compared)


def _evidence(cell: CellSummary, full: CellSummary | None, found: ProblemDifferences | None) -> Evidence:
    if found is None:
        missing = "no full cache to compare with" if full is None else "no problem in common with the full cache"
        why = missing if cell.n else "no judged sample"
        return Evidence(cell, None, why)
    gained, lost = (None, None) if found.partial else (found.gained, found.lost)
    return Evidence(cell, Differences(found.problems, found.total, found.squares, gained, lost))
