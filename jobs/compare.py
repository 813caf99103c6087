"""The statistics of a sweep: estimates, each policy against the baseline, and a hierarchy's two questions."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from db.queries import CellSummary
from db.scores import Verdict
from jobs.grading import number
from jobs.statistics import (
    Estimate,
    Independence,
    Paired,
    Scores,
    holm,
    independence,
    majority_at_k,
    paired,
    pass_at_1,
    pass_at_k,
    smallest_effect,
)
from tiercache.errors import SpecError

Verdicts = Mapping[str, Mapping[int, Verdict]]  # problem -> repeat -> verdict
BASELINE = "full"


@dataclass(frozen=True)
class Compared:
    """One cell. `versus` is None for the baseline and where there is none; `p_holm` is corrected over the group."""

    policy: str
    accuracy: Estimate
    pass_k: Estimate | None
    maj_k: Estimate | None
    versus: Paired | None
    p_holm: float | None


@dataclass(frozen=True)
class Group:
    """Cells of one protocol: same model, data, prompt, sampling and seeds.

    shown  the smallest paired difference that the problems could have shown with 80% power, by how often the policies'
           verdicts differ from the baseline's at the median.
    grids  tests of HBM against eviction, by what their policies have in common.
    """

    model: str
    benchmark: str
    protocol: str
    baseline: str | None
    cells: tuple[Compared, ...]
    shown: float | None
    grids: tuple[tuple[str, Independence], ...]


def compare(
    summaries: Sequence[CellSummary],
    verdicts: Mapping[str, Verdicts],
    configs: Mapping[str, Mapping[str, Any]],
    baseline: str | None = None,
    k: int | None = None,
) -> list[Group]:
    """Compares the cells of a sweep that have samples.

    Args:
        verdicts, configs: by fingerprint.
        baseline: a policy's label, name or fingerprint; None takes the full cache where the group has it.
        k: also estimate pass@k and maj@k.

    Raises:
        SpecError: no group has that baseline. StatisticsError: there are fewer than k generations.
    """
    judged = [summary for summary in summaries if verdicts.get(summary.fingerprint)]
    ordered = sorted(judged, key=lambda row: (row.model, row.benchmark, row.protocol))  # stable: the sweep's own order
    groups = [list(rows) for _, rows in groupby(ordered, key=lambda row: (row.model, row.benchmark, row.protocol))]
    found = [_group(rows, verdicts, configs, baseline, k) for rows in groups]
    if baseline is not None and not any(group.baseline for group in found):
        known = ", ".join(dict.fromkeys(row.policy for row in judged)) or "none"
        raise SpecError(f"--baseline: no policy '{baseline}' in this sweep; it has: {known}.")
    return found


def _group(
    rows: Sequence[CellSummary],
    verdicts: Mapping[str, Verdicts],
    configs: Mapping[str, Mapping[str, Any]],
    baseline: str | None,
    k: int | None,
) -> Group:
    wanted = baseline or BASELINE
    base = next((row for row in rows if wanted in (row.policy, row.policy_name, row.fingerprint)), None)
    against = {
        row.fingerprint: _versus(verdicts[row.fingerprint], verdicts[base.fingerprint])
        for row in rows
        if base is not None and row is not base
    }
    corrected = dict(zip(against, holm([each.p_value if each else None for each in against.values()]), strict=True))
    cells = tuple(
        Compared(
            row.policy,
            pass_at_1(_scores(verdicts[row.fingerprint])),
            pass_at_k(_scores(verdicts[row.fingerprint]), k) if k else None,
            majority_at_k(_answers(verdicts[row.fingerprint]), k) if k else None,
            against.get(row.fingerprint),
            corrected.get(row.fingerprint),
        )
        for row in rows
    )
    first = rows[0]
    grids = tuple(_grids(rows, verdicts, configs))
    label = base.policy if base else None
    return Group(first.model, first.benchmark, first.protocol, label, cells, _shown(list(against.values())), grids)


def _scores(verdicts: Verdicts) -> Scores:
    return {problem: [verdict.score for verdict in repeats.values()] for problem, repeats in verdicts.items()}


def _answers(verdicts: Verdicts) -> dict[str, list[tuple[str | None, bool]]]:
    """Answers in one form, so that `1,000` and `1000` are one vote."""
    return {
        problem: [(_one_form(verdict.extracted), verdict.score >= 1.0) for verdict in repeats.values()]
        for problem, repeats in verdicts.items()
    }


def _one_form(answer: str | None) -> str | None:
    value = number(answer) if answer else None
    return answer.strip() if answer and value is None else None if value is None else str(value)


def _versus(policy: Verdicts, baseline: Verdicts) -> Paired | None:
    """On the repeats that both have: a sample that failed on one side is left out on both."""
    both = {
        problem: sorted(repeats.keys() & baseline[problem].keys())
        for problem, repeats in policy.items()
        if problem in baseline
    }
    common = {problem: repeats for problem, repeats in both.items() if repeats}
    if not common:
        return None
    ours, theirs = (
        {problem: [side[problem][repeat].score for repeat in repeats] for problem, repeats in common.items()}
        for side in (policy, baseline)
    )
    return paired(ours, theirs)


def _shown(found: Sequence[Paired | None]) -> float | None:
    pairs = [each for each in found if each is not None and each.gained is not None and each.lost is not None]
    if not pairs:
        return None
    shares = sorted(((each.gained or 0) + (each.lost or 0)) / each.pairs for each in pairs)
    return smallest_effect(min(each.n_problems for each in pairs), discordant=shares[len(shares) // 2])


def _grids(
    rows: Sequence[CellSummary], verdicts: Mapping[str, Verdicts], configs: Mapping[str, Mapping[str, Any]]
) -> "list[tuple[str, Independence]]":
    """Policies that differ in `hbm` and `evict` alone, with two values of at least one of them."""
    families: dict[str, dict[tuple[float, float], CellSummary]] = {}
    for row in rows:
        policy = json.loads(json.dumps(configs[row.fingerprint]["policy"]))
        placement = policy.get("placement") or {}
        ratios = placement.pop("hbm", None), placement.pop("evict", None)
        if policy.get("name") != BASELINE and None not in ratios:
            families.setdefault(json.dumps(policy, sort_keys=True), {})[ratios] = row
    found = []
    for grid in families.values():
        hbm, evict = ({ratios[axis] for ratios in grid} for axis in (0, 1))
        if len(hbm) > 1 or len(evict) > 1:
            scores = {ratios: _scores(verdicts[row.fingerprint]) for ratios, row in grid.items()}
            found.append((next(iter(grid.values())).policy_name, independence(scores)))
    return found
