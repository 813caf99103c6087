"""The questions that the page Compare answers, one view each, over cells of one protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import streamlit as st

from dashboard import curves, data, figures, forest, grids
from dashboard.choices import choice_key, choose, remember, remembered
from dashboard.colours import Look
from dashboard.downloads import downloads
from dashboard.drawing import FULL
from dashboard.limits import GLANCE, LISTED, MARKED, limited
from dashboard.show import show
from dashboard.tables import list_height
from db.queries import CellSummary, PairedDelta

PAIRED = (
    "Paired: each policy and the baseline on the same problem and repeat, both judged (a failed sample pairs with "
    "nothing). Gained is right only here, lost right only with the baseline. Intervals are Agresti and Min's, with "
    "part marks the normal one; hollow: the interval holds zero. They aren't corrected for their number."
)
AXES = {"bytes": "bytes per sequence", "share": "share of the full cache"}


def overview(cells: list[CellSummary], look: Mapping[str, Look]) -> None:
    """Accuracy against memory and throughput, what became of the samples, and where the bytes lie."""
    with st.columns(3)[0]:
        axis = choose("Memory axis", list(AXES), "axis", AXES.__getitem__)
    marked, too_many_marks = limited(cells, MARKED, "The upper charts show")
    listed, too_many_rows = limited(cells, GLANCE, "The lower charts show")
    rows = (
        (
            figures.accuracy_against_memory(marked, look, "share" if axis == "share" else "bytes"),
            figures.accuracy_against_throughput(marked, look),
        ),
        (figures.outcome_bars(listed), figures.memory_bars(listed)),
    )
    for row, shown in zip(rows, (marked, listed), strict=True):
        for column, figure in zip(st.columns(2, gap="medium"), row, strict=True):
            show(figure, alt=figures.alt_text(figure, shown), name=figure.layout.title.text, place=column)
    notes = [
        *too_many_marks,
        *too_many_rows,
        "Bytes are the ledger's logical KV bytes of one sequence, averaged over decode steps and samples.",
        "Ringed policies, joined by the dotted front, are beaten by no other on both accuracy and resident bytes; host "
        "memory isn't counted, nor is chance.",
        "Tokens/s are those of an engine on the machine that ran the shard, at the batch it could admit.",
        "Intervals take samples as independent; the dashed line and the band are the full cache.",
    ]
    if any(cell.exclusive is False for cell in cells):
        notes.append(
            "Some shards shared their node with another engine: their tokens/s may be low (hollow; column 'node')."
        )
    if waiting := sum(cell.n == 0 for cell in cells):
        notes.append(f"Policies without a judged sample, missing from the charts: {waiting}.")
    if unmeasured := sum(cell.n > 0 and cell.decode_tokens_per_s is None for cell in cells):
        notes.append(f"Policies without a measured throughput, missing from that chart: {unmeasured}.")
    if unmeasured := sum(cell.n > 0 and cell.resident_bytes is None for cell in cells):
        notes.append(f"Policies without recorded bytes, missing from the memory charts: {unmeasured}.")
    if any(cell.problems < cell.n for cell in cells):
        notes.append("Problems were repeated, so the intervals are somewhat too narrow.")
    st.caption(" ".join(notes))


def budget(source: data.Source, cells: list[CellSummary], look: Mapping[str, Look]) -> None:
    """How accuracy falls as fewer bytes stay, and where each policy breaks."""
    presets = sorted({line.policy_name for line in curves.lines(cells)} - {FULL})
    in_colour = presets
    if len(presets) > curves.IN_COLOUR:
        asked = [name for name in (remembered("colour") or "").split(",") if name in presets]
        in_colour = st.multiselect(
            "In colour",
            presets,
            default=asked or curves.first_in_colour(cells),
            key=choice_key("colour", presets),
            help=f"At first the {curves.IN_COLOUR} that are most accurate on at most half of the full cache's bytes.",
        )
        remember("colour", ",".join(in_colour))
    marked, too_many = limited(cells, MARKED, "The chart shows")
    show(curves.budget_curves(marked, look, in_colour), alt=curves.in_words(marked), name="budget curves")
    line = "A line turns one setting only, named when pointed at; a wide pale stretch is its steepest fall."
    notes = [*too_many, line]
    if missing := sum(not curves.measured(cell) for cell in cells):
        notes.append(f"Policies without an accuracy or recorded bytes, missing from the chart: {missing}.")
    st.caption(" ".join(notes))
    full = next((cell for cell in cells if cell.policy_name == FULL), None)
    st.subheader("Where each policy breaks")
    table = curves.cliff_table(cells, deltas_from(source, full, cells) if full else {})
    share = st.column_config.NumberColumn(format="percent")
    st.dataframe(
        table,
        hide_index=True,
        height=list_height(len(table)),
        placeholder="–",
        alt="By policy: the least share of bytes that holds, and the steepest fall of accuracy",
        column_config=dict.fromkeys(("holds down to", "cliff from", "cliff to", "accuracy lost there"), share),
    )
    downloads(table, "cliffs")
    st.caption(
        "Holds: going down from the fullest cache, accuracy isn't shown to be below the full cache's (paired by "
        "sample, 95%). A dash: it holds nowhere"
        + ("" if full else " (here: the full cache was not run)")
        + ", or no two neighbours' intervals are apart."
    )


def paired(source: data.Source, cells: list[CellSummary], look: Mapping[str, Look]) -> None:
    """Each policy against a pinned baseline on the same samples."""
    ordered = sorted((cell for cell in cells if cell.n), key=lambda cell: (cell.policy_name != FULL, cell.policy))
    by_key = {cell.fingerprint: cell for cell in ordered}
    with st.columns(2)[0]:
        key = choose("Baseline", list(by_key), "baseline", lambda each: f"{by_key[each].policy} [{each[:6]}]")
    baseline = by_key[key]
    deltas = deltas_from(source, baseline, cells)
    listed, too_many = limited([cell for cell in cells if cell is not baseline], LISTED, "The chart shows")
    figure = forest.paired_differences(listed, deltas, look, baseline)
    show(figure, alt=forest.in_words(listed, deltas, baseline), name="paired differences")
    st.caption(" ".join([*too_many, PAIRED]))


def hierarchy(source: data.Source, cells: list[CellSummary], sweep_ids: tuple[str, ...]) -> None:
    """Accuracy over the hierarchy's two ratios."""
    found = grids.grids(cells, data.configs(source.key, source.engine, sweep_ids))
    if not found:
        st.info("No grid of HBM and eviction ratios here", icon=":material/grid_off:")
        st.text("It needs hierarchy cells with two values of each and their other settings alike, in a sweep file:")
        st.code("policies:\n  - {name: hierarchy, hbm: [0.25, 0.5], evict: [0.0, 0.03]}", language="yaml")
        return
    chosen = next(iter(found))
    if len(found) > 1:
        chosen = choose("Other settings", list(found), "settings")
    show(grids.hbm_evict_map(found[chosen]), alt=grids.in_words(found[chosen]), name="HBM by eviction")
    st.text(f"Cells: {chosen}")  # a label from the database: no caption, which is read as Markdown
    st.caption("A dash: no such cell in this selection, or none of its samples has been judged.")


def deltas_from(source: data.Source, baseline: CellSummary, cells: Sequence[CellSummary]) -> dict[str, PairedDelta]:
    """Return the paired differences of all other cells from a baseline."""
    others = tuple(cell.fingerprint for cell in cells if cell.fingerprint != baseline.fingerprint)
    return data.deltas(source.key, source.engine, baseline.fingerprint, others)
