"""The result table of a sweep: one row per policy, grouped by model, benchmark and protocol.

Accuracy comes with its interval, what a policy gives back stands beside what it costs, and a number that was not
measured is a dash. Groups of different protocols are never put into one table.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from db.queries import CellSummary, DiagnosticSummary, SweepInfo
from tiercache.diagnostics.values import MEANING

WIDTH = 140
UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
COMPACT_BELOW = 120
DIAGNOSTICS = {
    "fmm_acc": " FMM",
    "fmm_fp": " FMM-fp",
    "recall": " recall",
    "output_error": " error",
    "churn": " churn",
    "lir": "  LIR",
    "kl": "   KL",
    "first_divergent": " token",
}
COUNTS = ("right", "wrong", "none", "cut", "fail")


def console(stderr: bool = False) -> Console:
    """A console as wide as the terminal; into files and pipes as wide as the tables need."""
    screen = Console(stderr=stderr, highlight=False)
    return screen if screen.is_terminal else Console(stderr=stderr, highlight=False, width=WIDTH)


def result_tables(summaries: Sequence[CellSummary], width: int = WIDTH) -> list[RenderableType]:
    """One table for each (model, benchmark, protocol), in the order of the summaries.

    Below 120 columns the counts and the bytes outside the device are left out rather than cut off; `export` has all.
    """
    order = {key: i for i, key in reversed(list(enumerate(map(_group, summaries))))}
    ordered = sorted(summaries, key=lambda summary: order[_group(summary)])
    return [_table(list(rows), compact=width < COMPACT_BELOW) for _, rows in groupby(ordered, key=_group)]


def diagnostic_tables(summaries: Sequence[CellSummary], found: Mapping[str, DiagnosticSummary]) -> list[RenderableType]:
    """For each group of cells of which some are diagnosed: one row per policy, and what the columns mean."""
    order = {key: i for i, key in reversed(list(enumerate(map(_group, summaries))))}
    measured = sorted((s for s in summaries if s.fingerprint in found), key=lambda summary: order[_group(summary)])
    return [_diagnostic_table(list(rows), found) for _, rows in groupby(measured, key=_group)]


def _diagnostic_table(rows: Sequence[CellSummary], found: Mapping[str, DiagnosticSummary]) -> Table:
    title = Text(f"{rows[0].model} on {rows[0].benchmark}: diagnostics", style="bold")
    meanings = "\n".join(f"{heading.strip()}: {MEANING[name]}" for name, heading in DIAGNOSTICS.items())
    table = Table(
        title=title,
        title_justify="left",
        caption=Text(f"{meanings}\ndiverge: samples in which some token differs; token: mean over these.", style="dim"),
        caption_justify="left",
        box=SIMPLE_HEAD,
        show_edge=False,
        padding=0,
    )
    table.add_column("policy", overflow="fold", min_width=24)
    for name in (*DIAGNOSTICS.values(), " diverge", "  n"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(Text(row.policy), *(Text(value) for value in diagnostic_texts(found[row.fingerprint])))
    return table


def diagnostic_texts(row: DiagnosticSummary) -> list[str]:
    """Each of `DIAGNOSTICS`, which ends with the token, then the share of samples that diverge and their number."""
    texts = [_figure(getattr(row, name)) for name in DIAGNOSTICS if name != "first_divergent"]
    token = "–" if row.first_divergent is None else f"{row.first_divergent:.0f}"
    return [*texts, token, f"{row.diverged_share:.0%}", str(row.diagnosed)]


def _figure(value: float | None) -> str:
    """Three digits after the point; what would vanish there with its power of ten, since 0.000 means none at all."""
    if value is None:
        return "–"
    return f"{value:.0e}" if 0 < abs(value) < 0.0005 else f"{value:.3f}"


def _group(summary: CellSummary) -> tuple[str, str, str]:
    return summary.model, summary.benchmark, summary.protocol


def _table(rows: Sequence[CellSummary], compact: bool) -> Table:
    first = rows[0]
    title = Text(f"{first.model} on {first.benchmark}", style="bold")
    title.append(f"   protocol {first.protocol[:8]}", style="dim")
    table = Table(
        title=title,
        title_justify="left",
        caption=_caption(rows, compact),
        caption_justify="left",
        box=SIMPLE_HEAD,
        show_edge=False,
        padding=0,
    )
    unit = max((_power(size) for row in rows for size in _sizes(row) if size), default=0)
    table.add_column("policy", overflow="fold", min_width=24)
    for name in ("accuracy % [95%]", *(("fail",) if compact else COUNTS), " tok/s"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("device",) if compact else ("device", "host", "evicted"):
        table.add_column(f"{name}\n{UNITS[unit]}", justify="right", no_wrap=True)
    for name in ("of\nfull", "  n"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*_cells(row, unit, compact))
    return table


def _cells(row: CellSummary, unit: int, compact: bool) -> list[RenderableType]:
    counts = (row.failed,) if compact else (row.correct, row.wrong, row.no_answer, row.truncated, row.failed)
    sizes = _sizes(row)[:1] if compact else _sizes(row)
    speed = f"{row.decode_tokens_per_s:,.0f}" if row.decode_tokens_per_s is not None else "–"
    if row.exclusive is False and row.decode_tokens_per_s is not None:
        speed += "*"
    return [
        Text(row.policy),
        Text(accuracy_text(row), style="bold"),
        *(Text(str(count)) for count in counts),
        Text(speed),
        *(Text("–" if size is None else _digits(size / 1024**unit, unit)) for size in sizes),
        Text(share_text(row)),
        Text(f"{row.n}" if row.expected is None or row.n >= row.expected else f"{row.n}/{row.expected}"),
    ]


def _sizes(row: CellSummary) -> tuple[float | None, ...]:
    return row.resident_bytes, row.ddr_bytes, row.evicted_bytes


def _caption(rows: Sequence[CellSummary], compact: bool) -> Text:
    text = "tok/s: decoding, all rows of a batch together. device: keys and values of one sequence, in full precision "
    text += "or quantised, mean over its decoding; of full: over what the full cache holds at the same steps."
    if not compact:
        text += " host: the same in host memory. evicted: gone at its end."
        text += " none: no answer found; cut: token limit reached before one."
    if any(row.exclusive is False for row in rows):
        text += "\n* other engines ran on the same machine: compare such speeds with care."
    return Text(text, style="dim")


def share_text(row: CellSummary) -> str:
    """Device bytes in per cent of the full cache's, or a dash."""
    return "–" if row.resident_share is None else f"{row.resident_share:.0%}"


def accuracy_text(row: CellSummary) -> str:
    """`62.0 [52.2, 70.9]` in per cent, or a dash while nothing is judged."""
    if row.accuracy is None or row.accuracy_low is None or row.accuracy_high is None:
        return "–"
    return f"{100 * row.accuracy:.1f} [{100 * row.accuracy_low:.1f}, {100 * row.accuracy_high:.1f}]"


def bytes_text(value: float | None) -> str:
    """Bytes in binary units with three digits: `512 B`, `431 KiB`, `1.75 GiB`; a dash for None."""
    if value is None:
        return "–"
    unit = _power(value)
    return f"{_digits(value / 1024**unit, unit)} {UNITS[unit]}"


def _power(value: float) -> int:
    """Index of the unit in which a number of bytes has at most three digits before the point."""
    unit = 0
    while abs(value) >= 1000 and unit < len(UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return unit


def _digits(value: float, unit: int) -> str:
    """Three digits, none after the point for whole bytes."""
    digits = 0 if unit == 0 or value >= 100 or value == 0 else 1 if value >= 10 else 2
    return f"{value:,.{digits}f}"


def sweep_table(sweeps: Iterable[SweepInfo]) -> Table:
    """All sweeps, the newest first: state, samples done of those expected, failures."""
    table = Table(title="Sweeps", title_justify="left", box=SIMPLE_HEAD)
    for name in ("id", "name", "state", "started (UTC)"):
        table.add_column(name, overflow="fold")
    for name in ("cells", "done", "failed"):
        table.add_column(name, justify="right", no_wrap=True)
    for sweep in sweeps:
        share = f" ({sweep.done / sweep.expected:.0%})" if sweep.expected else ""
        table.add_row(
            sweep.id,
            Text(sweep.name),
            sweep.live_state(),
            f"{sweep.created_at:%Y-%m-%d %H:%M}",
            str(sweep.cells),
            f"{sweep.done} of {sweep.expected}{share}",
            str(sweep.failed),
        )
    return table
