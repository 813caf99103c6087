"""A setting's own table, a paper's published one beside it, and the tests of a hierarchy's grid, as blocks."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from db.intervals import wilson
from db.queries import CellSummary
from jobs.compare import Compared, Group
from jobs.compare_report import p_text
from jobs.papers.blocks import Block, Bullets, Heading, Paragraph, Table
from jobs.papers.kinds import ARXIV, FULL, Published
from jobs.papers.picks import SCALED, Pick
from jobs.papers.settings import Setting
from jobs.papers.sources import SUMMARIES, VERDICTS
from jobs.statistics import Independence, Trend

STAND_IN = "chain"  # of the embedded reasoner: takes the place of every benchmark


def percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f}"


def points(value: float, low: float, high: float) -> str:
    return f"{100 * value:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]"


def own(setting: Setting, group: Group, source: str) -> Iterator[Block]:
    """Every policy with its cost, its interval and the paired test against the baseline."""
    rows = tuple(_own(summary, cell) for summary, cell in zip(setting.cells, group.cells, strict=True))
    columns = ("policy", "device bytes, %", "evicted, %", "accuracy, % [95%]", "problems", "difference, points [95%]")
    yield Table(
        (*columns, "gained", "lost", "p", "p (Holm)"), rows, (source,), tuple(range(1, 10)), (*SUMMARIES, *VERDICTS)
    )
    words = (
        f"Differences are from {group.baseline}, problem by problem." if group.baseline else "There is no full cache."
    )
    if group.shown is not None:
        words += f" These problems can show a difference of {100 * group.shown:.1f} points or more with 80% power."
    yield Paragraph(words)


def _own(summary: CellSummary, cell: Compared) -> tuple[str, ...]:
    found, gone = cell.accuracy, None if summary.kept_share is None else 1 - summary.kept_share
    accuracy = f"{percent(found.value)} [{percent(found.low)}, {percent(found.high)}]"
    start = (summary.policy, percent(summary.resident_share), percent(gone), accuracy, str(found.n_problems))
    if cell.versus is None:
        return (*start, "–", "–", "–", "–", "–")
    versus = cell.versus
    counts = ("–" if count is None else str(count) for count in (versus.gained, versus.lost))
    difference = points(versus.difference, versus.low, versus.high)
    return (*start, difference, *counts, p_text(versus.p_value), p_text(cell.p_holm))


def applies(setting: Setting, table: Published) -> bool:
    """Whether the table's numbers are of this setting's benchmark, or of one for which it stands in."""
    if setting.data == STAND_IN:
        return True
    return setting.data == table.benchmark and bool(setting.tasks or not table.tasks)


def beside(setting: Setting, group: Group, table: Published, source: str) -> Iterator[Block]:
    """The published table, cell by cell beside ours; nothing where the setting has none of its policies."""
    if not applies(setting, table):
        return
    found = {index: setting.find(pick) for index, (pick, _) in enumerate(table.rows)}
    if not any(cell for index, cell in found.items() if table.rows[index][0] != FULL):
        return
    measured = {cell.fingerprint: each for cell, each in zip(setting.cells, group.cells, strict=True)}
    full = next((value for pick, value in table.rows if pick == FULL), None)
    rows = []
    for index, (pick, value) in enumerate(table.rows):
        if (cell := found[index]) is not None:
            rows.append((str(pick), *_ours(measured[cell.fingerprint], cell), *_theirs(value, table.n, full)))
    yield Heading(3, f"Beside arXiv {ARXIV[table.paper]}: {table.title}")
    columns = ("published for", "our policy", "ours, % [95%]", "less our full, points", "published, % [95%]")
    published = f"arXiv {ARXIV[table.paper]}"
    yield Table((*columns, "less its full, points"), tuple(rows), (source, published), (2, 3, 4, 5), VERDICTS)
    if missing := len(table.rows) - len(rows):
        yield Paragraph(f"{missing} published values have no cell here; files: {', '.join(table.sweeps)}.")
    yield Paragraph("What differs between the two, so that equal numbers aren't to be expected:")
    yield Bullets((*differences(setting, table, max(each.accuracy.n_problems for each in group.cells)), *table.notes))


def _ours(found: Compared, cell: CellSummary) -> tuple[str, str, str]:
    value = found.accuracy
    difference = "–" if found.versus is None else f"{100 * found.versus.difference:+.1f}"
    return cell.policy, f"{percent(value.value)} [{percent(value.low)}, {percent(value.high)}]", difference


def _theirs(value: float, n: int | None, full: float | None) -> tuple[str, str]:
    interval = wilson(round(n * value / 100), n) if n else None
    text = f"{value:.1f}" + (f" [{percent(interval[0])}, {percent(interval[1])}]" if interval else "")
    return text, "–" if full is None else f"{value - full:+.1f}"


def differences(setting: Setting, table: Published, n: int) -> Iterator[str]:
    """Each part of the protocol that isn't the paper's, or that the paper doesn't give."""
    model, sampling = setting.config.get("model") or {}, setting.config.get("sampling") or {}
    pairs = (
        ("model", model.get("id", setting.model), table.model),
        ("benchmark", setting.benchmark if setting.tasks else setting.data, table.benchmark),
        ("problems", n, table.n),
        ("temperature", sampling.get("temperature"), table.temperature),
        ("most new tokens", sampling.get("max_new_tokens"), table.max_new_tokens),
    )
    for name, ours, theirs in pairs:
        if theirs is None:
            yield f"{name}: {ours} here; not stated there"
        elif ours != theirs and not (name == "benchmark" and setting.tasks):
            yield f"{name}: {ours} here, {theirs} there"
    lengths = dict.fromkeys(
        text
        for pick, _ in table.rows
        if (cell := setting.find(pick)) is not None
        for text in _lengths(pick, setting.policy(cell))
    )
    if lengths:
        yield f"lengths: {'; '.join(lengths)}"


def _lengths(pick: Pick, policy: Mapping[str, Any]) -> Iterator[str]:
    preset = pick.config()
    for part in ("placement", "schedule"):
        for knob in SCALED:
            ours, usual = (side.get(part) or {} for side in (policy, preset))
            if knob != "budget" and knob in ours and ours[knob] != usual.get(knob):
                yield f"{pick.name} has {knob} {json.dumps(ours[knob])}, by default {json.dumps(usual.get(knob))}"


def grid(name: str, found: Independence, source: str) -> Iterator[Block]:
    """Does accuracy depend on the HBM ratio at fixed eviction, and on eviction at a fixed HBM ratio?"""
    yield Heading(3, f"{name}: HBM ratio and eviction ratio")
    rows = []
    for row in found.rows:
        varied, fixed = ("HBM", "evict") if row.question == "hbm_ratio" else ("evict", "HBM")
        levels = ", ".join(f"{level:g}: {percent(mean)}" for level, mean in zip(row.levels, row.means, strict=False))
        numbers = (str(row.n_problems), row.test, p_text(row.p_value), p_text(row.p_holm), percent(row.smallest_effect))
        rows.append((varied, f"{fixed} {row.stratum:g}", levels, *numbers))
    columns = (
        "varied",
        "fixed",
        "accuracy, % by level",
        "problems",
        "test",
        "p",
        "p (Holm)",
        "smallest effect, points",
    )
    yield Table(columns, tuple(rows), (source,), (3, 5, 6, 7), VERDICTS)
    trends = [_trend(name, trend) for name, trend in (("HBM", found.hbm), ("eviction", found.evict)) if trend]
    yield Bullets(tuple(trends))


def _trend(name: str, found: Trend) -> str:
    return (
        f"Over all levels: {100 * found.slope:+.1f} points for a change of the {name} ratio from 0 to 1, p "
        f"{p_text(found.p_value)}; {100 * found.smallest_effect:.1f} points between the outer levels could have "
        "been shown."
    )
