"""What each policy costs in accuracy and gives back in memory and throughput, on one model and benchmark."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pandas as pd
import streamlit as st

from dashboard import compare_views, data
from dashboard.choices import choose, remember, remembered, sweep_names
from dashboard.colours import looks
from dashboard.downloads import downloads
from dashboard.drawing import FULL
from dashboard.tables import list_height, summary_table
from db.queries import CellSummary, PairedDelta

ALL = "all sweeps"
VIEWS = {
    "overview": "Overview",
    "budget": "Budget curves",
    "paired": "Paired differences",
    "hierarchy": "HBM × eviction",
}


def page() -> None:
    """Show the page."""
    st.title("Compare")
    source = data.source()
    names = data.names_of_sweeps(source.key, source.engine)
    if not names:
        data.nothing_yet("The database holds no sweep.")
    columns = st.columns(3)
    with columns[0]:
        sweep_id = choose("Sweep", [*names, ALL], "sweep", sweep_names({**names, ALL: ALL}))
    of_sweep = None if sweep_id == ALL else sweep_id
    there = data.places(source.key, source.engine, of_sweep)
    if not there:
        st.text("This sweep has no cells.")
        return
    with columns[1]:
        model = choose("Model", sorted({place.model for place in there}), "model")
    with columns[2]:
        options = sorted({place.benchmark for place in there if place.model == model})
        benchmark = choose("Benchmark", options, "benchmark")
    cells = data.summaries(source.key, source.engine, of_sweep, model, benchmark)
    with st.container():  # always there: what follows keeps its place, and the browser what it has drawn
        comparable = _one_protocol(cells)
    view = _view()
    if sum(cell.n for cell in comparable) == 0:
        st.info("No sample of this selection has finished yet.", icon=":material/hourglass_empty:")
    else:
        look = looks(data.all_policies(source.key, source.engine))
        if view == "budget":
            compare_views.budget(source, comparable, look)
        elif view == "paired":
            compare_views.paired(source, comparable, look)
        elif view == "hierarchy":
            compare_views.hierarchy(source, comparable, tuple(names) if sweep_id == ALL else (sweep_id,))
        else:
            compare_views.overview(comparable, look)
    _table(source, cells)


def _view() -> str:
    """Ask which question to answer. Only what is looked at is computed."""
    wanted = remembered("view")
    start = wanted if wanted in VIEWS else "overview"
    # The key: without one the widget would be another as soon as the URL, its default, has changed.
    chosen = st.segmented_control(
        "View",
        list(VIEWS),
        default=start,
        required=True,
        format_func=VIEWS.__getitem__,
        label_visibility="collapsed",
        key="choose view",
    )
    remember("view", chosen)
    return chosen or start


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


def _table(source: data.Source, cells: list[CellSummary]) -> None:
    st.subheader("All metrics")
    deltas: dict[str, PairedDelta] = {}
    for protocol in {cell.protocol for cell in cells}:
        group = [cell for cell in cells if cell.protocol == protocol]
        full = next((cell for cell in group if cell.policy_name == FULL), None)
        if full is not None:
            deltas |= compare_views.deltas_from(source, full, group)
    table = summary_table(cells, deltas)
    st.dataframe(
        table,
        hide_index=True,
        height=list_height(len(table)),
        column_config=_columns(table),
        placeholder="–",
        alt="All metrics of the selected cells",
    )
    downloads(table, "comparison")


def _columns(table: pd.DataFrame) -> dict[str, Any]:
    shares = ("accuracy", "accuracy low", "accuracy high", "truncated", "resident share", "kept tokens")
    config: dict[str, Any] = {name: st.column_config.NumberColumn(format="percent") for name in shares}
    for name in ("vs full", "vs full low", "vs full high"):
        config[name] = st.column_config.NumberColumn(
            format="percent", help="difference, paired by sample, 95% interval; a dash: no sample in common"
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
    config["missing"] = st.column_config.TextColumn(help="why the row has dashes")
    config["on front"] = st.column_config.CheckboxColumn(
        help="no other policy has at least its accuracy on at most its resident bytes"
    )
    return config
