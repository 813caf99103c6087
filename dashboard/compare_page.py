"""What each policy costs in accuracy and gives back in memory and throughput, on one model and benchmark."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pandas as pd
import streamlit as st

from dashboard import data, figures
from dashboard.choices import choose, sweep_names
from dashboard.colours import looks
from dashboard.tables import csv_safe, list_height, summary_table
from db.queries import CellSummary, PairedDelta

ALL = "all sweeps"
AXES = {"bytes": "bytes per sequence", "share": "share of the full cache"}
CHART_CONFIG = {"displaylogo": False, "toImageButtonOptions": {"format": "svg", "filename": "tiercache"}}


def page() -> None:
    """Show the page."""
    st.title("Compare")
    source = data.source()
    names = {sweep.id: sweep.name for sweep in data.sweeps(source)}
    if not names:
        data.nothing_yet("The database holds no sweep.")
    shown = sweep_names({**names, ALL: ALL})
    columns = st.columns(4)
    with columns[0]:
        sweep_id = choose("Sweep", [*names, ALL], "sweep", shown)
    cells = data.summaries(source.key, source.engine, None if sweep_id == ALL else sweep_id)
    if not cells:
        st.text("This sweep has no cells.")
        return
    with columns[1]:
        model = choose("Model", sorted({cell.model for cell in cells}), "model")
    cells = [cell for cell in cells if cell.model == model]
    with columns[2]:
        benchmark = choose("Benchmark", sorted({cell.benchmark for cell in cells}), "benchmark")
    cells = [cell for cell in cells if cell.benchmark == benchmark]
    with columns[3]:
        axis = choose("Memory axis", list(AXES), "axis", AXES.__getitem__)
    comparable = _one_protocol(cells)
    if sum(cell.n for cell in comparable) == 0:
        st.info("No sample of this selection has finished yet.", icon=":material/hourglass_empty:")
    else:
        _charts(comparable, data.all_policies(source.key, source.engine), "share" if axis == "share" else "bytes")
    _table(source, cells)


def _one_protocol(cells: list[CellSummary]) -> list[CellSummary]:
    """Return the cells of one protocol, asking which if there are several."""
    counts = Counter(cell.protocol for cell in cells)
    if len(counts) == 1:
        return cells
    st.warning(
        f"This selection was measured under {len(counts)} different protocols (token limits, sampling, data or grader "
        "differ). Scores under different protocols can't be compared: the charts show one of them at a time.",
        icon=":material/rule:",
    )
    options = [protocol for protocol, _ in counts.most_common()]
    protocol = choose("Protocol", options, "protocol", lambda key: f"{key[:8]} ({counts[key]} cells)")
    return [cell for cell in cells if cell.protocol == protocol]


def _charts(cells: list[CellSummary], policies: list[tuple[str, str]], axis: figures.MemoryAxis) -> None:
    look = looks(policies)
    rows = (
        (figures.accuracy_against_memory(cells, look, axis), figures.accuracy_against_throughput(cells, look)),
        (figures.outcome_bars(cells), figures.memory_bars(cells)),
    )
    for row in rows:
        for column, figure in zip(st.columns(2, gap="medium"), row, strict=True):
            column.plotly_chart(figure, config=CHART_CONFIG, alt=figures.alt_text(figure, cells))
    notes = [
        "Bytes are the ledger's logical KV bytes of one sequence, averaged over decode steps and samples.",
        "Tokens/s are those of an engine on the machine that ran the shard, at the batch it could admit.",
        "Intervals take samples as independent; the dashed line and the band are the full cache.",
    ]
    if any(cell.exclusive is False for cell in cells):
        notes.append(
            "Some shards shared their node with another engine: their tokens/s may be low (hollow; column 'node')."
        )
    if unmeasured := sum(cell.n > 0 and cell.decode_tokens_per_s is None for cell in cells):
        notes.append(f"Policies without a measured throughput, missing from that chart: {unmeasured}.")
    if any(cell.problems < cell.n for cell in cells):
        notes.append("Problems were repeated, so the intervals are somewhat too narrow.")
    st.caption(" ".join(notes))


def _table(source: data.Source, cells: list[CellSummary]) -> None:
    st.subheader("All metrics")
    deltas: dict[str, PairedDelta] = {}
    for protocol in {cell.protocol for cell in cells}:
        group = [cell for cell in cells if cell.protocol == protocol]
        full = next((cell.fingerprint for cell in group if cell.policy_name == figures.FULL), None)
        if full is not None:
            others = tuple(cell.fingerprint for cell in group if cell.fingerprint != full)
            deltas |= data.deltas(source.key, source.engine, full, others)
    table = summary_table(cells, deltas)
    st.dataframe(
        table,
        hide_index=True,
        height=list_height(len(table)),
        column_config=_columns(table),
        placeholder="–",
        alt="All metrics of the selected cells",
    )
    st.download_button(
        "Download as CSV", csv_safe(table), "tiercache-compare.csv", "text/csv", icon=":material/download:"
    )


def _columns(table: pd.DataFrame) -> dict[str, Any]:
    shares = ("accuracy", "accuracy low", "accuracy high", "truncated", "resident share", "kept tokens")
    config: dict[str, Any] = {name: st.column_config.NumberColumn(format="percent") for name in shares}
    for name in ("vs full", "vs full low", "vs full high"):
        config[name] = st.column_config.NumberColumn(
            format="percent", help="difference, paired by sample, 95% interval"
        )
    for name in table.columns:
        if name.endswith("bytes") or name.startswith("bytes"):
            config[name] = st.column_config.NumberColumn(format="localized")
        elif name.endswith("/s"):
            config[name] = st.column_config.NumberColumn(format="%.1f")
        elif name.endswith("(s)"):
            config[name] = st.column_config.NumberColumn(format="%.4f")
    config["output tokens"] = st.column_config.NumberColumn(format="%.0f")
    config["protocol"] = st.column_config.TextColumn(width=150)
    config["policy"] = st.column_config.TextColumn(pinned=True)
    return config
