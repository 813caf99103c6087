"""The statistics of a sweep as tables, and as plain data."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from jobs.compare import Compared, Group
from jobs.statistics import Estimate, Independence, Trend


def as_data(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """The groups as what JSON can hold."""
    return [asdict(group) for group in groups]


def tables(groups: Sequence[Group]) -> list[RenderableType]:
    """For each group its cells, then the tests of its grids."""
    shown: list[RenderableType] = []
    for group in groups:
        shown.append(_cells(group))
        shown += [_grid(name, found) for name, found in group.grids]
    return shown


def _cells(group: Group) -> Table:
    title = Text(f"{group.model} on {group.benchmark}", style="bold")
    title.append(f"   protocol {group.protocol[:8]}", style="dim")
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, caption=_caption(group), caption_justify="left")
    table.add_column("policy", overflow="fold", min_width=20)
    extra = [name for name in ("pass_k", "maj_k") if getattr(group.cells[0], name) is not None]
    names = ["accuracy % [95%]", *(name.replace("_", "@") for name in extra), "problems"]
    for name in (*names, "difference [95%]", "gained", "lost", "p", "p Holm"):
        table.add_column(name, justify="right", no_wrap=True)
    for cell in group.cells:
        table.add_row(
            Text(cell.policy),
            _estimate(cell.accuracy),
            *(_estimate(getattr(cell, name)) for name in extra),
            str(cell.accuracy.n_problems),
            *_versus(cell),
        )
    return table


def _estimate(found: Estimate) -> str:
    return f"{100 * found.value:.1f} [{100 * found.low:.1f}, {100 * found.high:.1f}]"


def _versus(cell: Compared) -> tuple[str, ...]:
    found = cell.versus
    if found is None:
        return ("–",) * 5
    return (
        f"{100 * found.difference:+.1f} [{100 * found.low:+.1f}, {100 * found.high:+.1f}]",
        "–" if found.gained is None else str(found.gained),
        "–" if found.lost is None else str(found.lost),
        p_text(found.p_value),
        p_text(cell.p_holm),
    )


def p_text(value: float | None) -> str:
    """Three digits, `<0.001` below, a dash for None."""
    return "–" if value is None else "<0.001" if value < 0.001 else f"{value:.3f}"


def _caption(group: Group) -> Text:
    if group.baseline is None:
        return Text("No baseline in this group: run `full` under the same protocol to compare with it.", style="dim")
    words = (
        f"difference: percentage points against {group.baseline} on the same samples; gained: right only here; lost: "
    )
    words += "right only there.\np: "
    words += "; ".join(dict.fromkeys(cell.versus.test for cell in group.cells if cell.versus is not None))
    words += ", two-sided; Holm: corrected over this table."
    if group.shown is not None:
        words += f" These problems can show a difference of {100 * group.shown:.1f} points or more (80% power)."
    return Text(words, style="dim")


def _grid(name: str, found: Independence) -> Table:
    table = Table(
        title=Text(f"{name}: does the HBM ratio matter at fixed eviction, and eviction at a fixed HBM ratio?"),
        title_justify="left",
        box=SIMPLE_HEAD,
        caption=Text("\n".join(filter(None, (_trend("HBM", found.hbm), _trend("eviction", found.evict)))), style="dim"),
        caption_justify="left",
    )
    for heading in ("varied", "fixed", "accuracy % by level", "problems", "test", "p", "p Holm", "smallest effect"):
        table.add_column(heading, justify="left" if heading in ("varied", "accuracy % by level", "test") else "right")
    for row in found.rows:
        varied, fixed = ("HBM", "evict") if row.question == "hbm_ratio" else ("evict", "HBM")
        levels = "  ".join(f"{level:g}: {100 * mean:.1f}" for level, mean in zip(row.levels, row.means, strict=False))
        effect = "–" if row.smallest_effect is None else f"{100 * row.smallest_effect:.1f}"
        table.add_row(
            varied,
            f"{fixed} {row.stratum:g}",
            levels,
            str(row.n_problems),
            row.test,
            p_text(row.p_value),
            p_text(row.p_holm),
            effect,
        )
    return table


def _trend(name: str, found: Trend | None) -> str:
    if found is None:
        return ""
    return (
        f"Over all strata: {100 * found.slope:+.1f} points for a change of the {name} ratio from 0 to 1, p "
        f"{p_text(found.p_value)}; a difference of {100 * found.smallest_effect:.1f} points could have been shown."
    )
