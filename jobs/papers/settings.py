"""Where policies are compared: one model on one benchmark under one protocol; and tasks of one benchmark together."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from db.queries import CellSummary
from db.scores import Verdict
from jobs.compare import Group, Verdicts, compare
from jobs.papers.picks import Pick, choose
from jobs.statistics import Independence, Scores, independence

TASKED = ("ruler", "longbench")  # benchmarks whose papers report the mean over their tasks


@dataclass(frozen=True)
class Setting:
    """Judged cells that may be compared, in the sweep's order; `tasks` is 0 unless it is several tasks together."""

    cells: tuple[CellSummary, ...]
    verdicts: Mapping[str, Verdicts]
    configs: Mapping[str, Mapping[str, Any]]
    tasks: int = 0

    @property
    def model(self) -> str:
        return self.cells[0].model

    @property
    def benchmark(self) -> str:
        return self.cells[0].benchmark

    @property
    def protocol(self) -> str:
        return self.cells[0].protocol

    @property
    def config(self) -> Mapping[str, Any]:
        """That of the first cell; all but the policy is common to them."""
        return self.configs[self.cells[0].fingerprint]

    @property
    def data(self) -> str:
        """The benchmark's own name, `gsm8k`; empty where it isn't stored."""
        return str((self.config.get("benchmark") or {}).get("name", ""))

    def policy(self, cell: CellSummary) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.configs[cell.fingerprint].get("policy") or {}
        return found

    @cached_property
    def group(self) -> Group:
        """Each cell against the full cache; a report asks for it several times."""
        (found,) = compare(self.cells, self.verdicts, self.configs)
        return found

    @cached_property
    def _grids(self) -> dict[tuple[tuple[tuple[float, float], str], ...], Independence]:
        return {}

    def independence(self, grid: Mapping[tuple[float, float], CellSummary]) -> Independence:
        """The tests of a grid (hbm, evict) -> cell; each is computed once."""
        key = tuple(sorted((ratios, cell.fingerprint) for ratios, cell in grid.items()))
        if key not in self._grids:
            scores = {ratios: self.scores(cell) for ratios, cell in grid.items()}
            self._grids[key] = independence(scores)
        return self._grids[key]

    def scores(self, cell: CellSummary) -> Scores:
        """Those of every problem that the cell has."""
        verdicts = self.verdicts[cell.fingerprint]
        return {problem: [one.score for one in repeats.values()] for problem, repeats in verdicts.items()}

    @cached_property
    def _picked(self) -> dict[str, CellSummary | None]:
        return {}

    def find(self, pick: Pick) -> CellSummary | None:
        """The cell that is meant, or None; each is looked for once, since claims and tables ask for the same ones."""
        key = repr(pick)
        if key not in self._picked:
            self._picked[key] = choose(pick, [(cell, self.policy(cell)) for cell in self.cells])
        return self._picked[key]


def settings(
    summaries: Sequence[CellSummary], verdicts: Mapping[str, Verdicts], configs: Mapping[str, Mapping[str, Any]]
) -> list[Setting]:
    """By model, benchmark and protocol in order of coming, cells without judged samples left out; pooled ones last."""
    groups: dict[tuple[str, str, str], list[CellSummary]] = {}
    for row in summaries:
        if verdicts.get(row.fingerprint):
            groups.setdefault((row.model, row.benchmark, row.protocol), []).append(row)
    single = [Setting(tuple(rows), verdicts, configs) for rows in groups.values()]
    families: dict[tuple[str, str], list[Setting]] = {}
    for setting in single:
        if setting.data in TASKED:
            families.setdefault((setting.model, setting.data), []).append(setting)
    pooled = [_pooled(family) for family in families.values() if len(family) > 1]
    return single + [setting for setting in pooled if setting is not None]


def _pooled(family: Sequence[Setting]) -> Setting | None:
    """Problems of all tasks together, for the policies that all tasks have. A task counts by its problems."""
    by_policy: dict[str, list[CellSummary]] = {}
    for setting in family:
        for cell in setting.cells:
            by_policy.setdefault(json.dumps(setting.policy(cell), sort_keys=True), []).append(cell)
    cells, verdicts, configs = [], dict[str, Verdicts](), dict[str, Mapping[str, Any]]()
    for rows in by_policy.values():
        if len(rows) < len(family):
            continue
        name = "+".join(row.fingerprint for row in rows)
        joined: dict[str, Mapping[int, Verdict]] = {}
        for setting, row in zip(family, rows, strict=True):
            joined |= {
                f"{row.benchmark}/{problem}": each for problem, each in setting.verdicts[row.fingerprint].items()
            }
        verdicts[name], configs[name] = joined, family[0].configs[rows[0].fingerprint]
        label = f"{family[0].data}, {len(family)} tasks"
        cells.append(
            replace(
                rows[0],
                fingerprint=name,
                benchmark=label,
                protocol="tasks together",
                hbm_bytes=_mean([row.hbm_bytes for row in rows]),
                packed_bytes=_mean([row.packed_bytes for row in rows]),
                full_bytes=_mean([row.full_bytes for row in rows]),
                kept_share=_mean([row.kept_share for row in rows]),
                decode_tokens_per_s=None,
            )
        )
    return Setting(tuple(cells), verdicts, configs, len(family)) if cells else None


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None
