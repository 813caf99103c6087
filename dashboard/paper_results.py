"""The papers' claims on a database's sweeps: verdicts, and published differences beside ours. No Streamlit here.

Verdicts are those of `tiercache report`. Scores are read only of sweeps whose policies a claim or a published table
asks for; which these are, the cells' configurations say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

from sqlalchemy import Engine

from db.intervals import wilson
from db.queries import CellInfo, SweepInfo, cell_configs, cell_summaries, list_cells
from db.scores import verdicts
from jobs.papers.claims import CLAIMS, PUBLISHED
from jobs.papers.judging import Judged, judged
from jobs.papers.kinds import FULL, Along, Contrast, Paper, Published, Test
from jobs.papers.picks import Pick, choose
from jobs.papers.report import settings_of
from jobs.papers.settings import Setting, settings
from jobs.papers.tables import applies


@dataclass(frozen=True)
class Read:
    """One sweep, as far as it has judged samples that say something to the papers."""

    sweep: SweepInfo
    settings: tuple[Setting, ...]


@dataclass(frozen=True)
class Result:
    """A claim's verdict and the sweep that gives it."""

    sweep: SweepInfo
    judged: Judged


@dataclass(frozen=True)
class Pair:
    """One test of a claim: our difference with its interval, and the published one where both numbers are printed.

    Differences are shares of 1. The published interval is Newcombe's for two separate groups of the paper's n: its
    problems aren't known one by one. None where n isn't stated, or the number is a mean of several.
    """

    claim: str
    what: str
    paper: Paper
    verdict: str
    value: float
    low: float
    high: float
    margin: float
    n: int
    published: float | None
    published_low: float | None = None
    published_high: float | None = None


def of_papers(sweeps: Sequence[SweepInfo]) -> list[SweepInfo]:
    """Those that have a paper file's name, or its small form's; of one name the newest."""
    files = {name.replace("_", "-") for claim in CLAIMS for name in claim.sweeps}
    wanted = files | {f"{name}-mini" for name in files}
    newest: dict[str, SweepInfo] = {}
    for sweep in sweeps:  # the newest first
        if sweep.name in wanted:
            newest.setdefault(sweep.name, sweep)
    return list(newest.values())


def read(engine: Engine, sweep: SweepInfo, only: tuple[str, str] | None = None) -> Read:
    """A sweep's scores; none where its policies are none of the papers'. `only`: of this (model, benchmark)."""
    configs = {key: config for key, (_, config) in cell_configs(engine, sweep.id).items()}
    groups: dict[tuple[str, str, str], list[tuple[CellInfo, Mapping[str, Any]]]] = {}
    for cell in list_cells(engine, sweep.id):
        policy = configs[cell.fingerprint].get("policy")
        if isinstance(policy, Mapping) and only in (None, (cell.model, cell.benchmark)):
            groups.setdefault((cell.model, cell.benchmark, cell.protocol), []).append((cell, policy))
    if not any(_asked_for(cells) for cells in groups.values()):
        return Read(sweep, ())
    if only is None:
        return Read(sweep, tuple(settings_of(engine, sweep)))
    model, benchmark = only
    cells = cell_summaries(engine, sweep.id, model=model, benchmark=benchmark)
    scores = verdicts(engine, sweep.id, [cell.fingerprint for cell in cells])
    return Read(sweep, tuple(settings(cells, scores, configs)))


def _asked_for(cells: Sequence[tuple[CellInfo, Mapping[str, Any]]]) -> bool:
    def there(pick: Pick) -> bool:
        return choose(pick, cells) is not None

    return any(all(map(there, claim.picks)) for claim in CLAIMS) or any(
        there(pick) for table in PUBLISHED for pick, _ in table.rows if pick != FULL
    )


def results(found: Sequence[Read]) -> list[Result]:
    """Every claim that the sweeps decide, in the papers' order; once for each model, benchmark and protocol."""
    said: dict[tuple[str, str, str, str], Result] = {}
    for claim in CLAIMS:
        for each in found:
            for setting in each.settings:
                key = (claim.id, setting.model, setting.benchmark, setting.protocol)
                if key not in said and (result := judged(claim, setting)) is not None:
                    said[key] = Result(each.sweep, result)
    return list(said.values())


def tables(found: Sequence[Read]) -> list[tuple[Read, Setting, Published]]:
    """Where a published table has policies of ours to stand beside; each table, model and benchmark once."""
    said: dict[tuple[str, str, str, str], tuple[Read, Setting, Published]] = {}
    for table in PUBLISHED:
        for each in found:
            for setting in each.settings:
                known = sum(setting.find(pick) is not None for pick, _ in table.rows if pick != FULL)
                key = (table.id, setting.model, setting.benchmark, setting.protocol)
                if known and applies(setting, table):
                    before = said.get(key)
                    if before is None or known > _known(before[1], table):
                        said[key] = (each, setting, table)
    return list(said.values())


def _known(setting: Setting, table: Published) -> int:
    return sum(setting.find(pick) is not None for pick, _ in table.rows if pick != FULL)


def pairs(found: Sequence[Result]) -> list[Pair]:
    """The tests of differences, each beside what was published; counts of bytes and rates are none."""
    said = []
    for each in found:
        claim = each.judged.claim
        for test, finding in zip(claim.tests, each.judged.findings, strict=True):
            ours = finding.found
            if ours is None:
                continue
            head = (claim.id, finding.what, claim.paper, finding.verdict)
            numbers = (ours.value, ours.low, ours.high, finding.margin, finding.n)
            said.append(Pair(*head, *numbers, *published(test, claim.paper)))
    return said


def published(test: Test, paper: Paper) -> tuple[float | None, float | None, float | None]:
    """The paper's own difference with its interval, as far as it prints the numbers."""
    for table in PUBLISHED:
        values = table.paper == paper and table.rows
        if not values:
            continue
        if isinstance(test, Contrast):
            first, second = (_value(values, pick) for pick in (test.first, test.second))
            if first is not None and second is not None:
                return _newcombe(first, second, table.n)
        if isinstance(test, Along):
            known = {ratios: _value(values, pick) for ratios, pick in test.grid}
            if (slope := _outer(known, 0 if test.ratio == "hbm" else 1)) is not None:
                return slope, None, None
    return None, None, None


def _value(rows: Sequence[tuple[Pick, float]], wanted: Pick) -> float | None:
    return next((value / 100 for pick, value in rows if pick == wanted), None)


def _outer(values: Mapping[tuple[float, float], float | None], axis: int) -> float | None:
    """Mean at the highest level less that at the lowest."""
    levels = sorted({ratios[axis] for ratios in values})
    ends = [[value for ratios, value in values.items() if ratios[axis] == level] for level in (levels[-1], levels[0])]
    sums = [[value for value in end if value is not None] for end in ends]
    if any(len(known) < len(end) for known, end in zip(sums, ends, strict=True)):
        return None
    return sum(sums[0]) / len(sums[0]) - sum(sums[1]) / len(sums[1])


def _newcombe(first: float, second: float, n: int | None) -> tuple[float, float | None, float | None]:
    """Difference of two shares of n problems each, as separate groups (Newcombe 1998, method 10)."""
    value = first - second
    ends = [wilson(round(n * share), n) for share in (first, second)] if n else []
    if len(ends) < 2 or ends[0] is None or ends[1] is None:
        return value, None, None
    (low1, high1), (low2, high2) = ends[0], ends[1]
    below = sqrt((first - low1) ** 2 + (high2 - second) ** 2)
    above = sqrt((high1 - first) ** 2 + (second - low2) ** 2)
    return value, max(-1.0, value - below), min(1.0, value + above)
