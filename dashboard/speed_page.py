"""What policies hold, move and wait for: bytes by tier, transfers, latencies, and rates beside the memory's own."""

from __future__ import annotations

from collections import Counter

import streamlit as st

from dashboard import data, speed_views
from dashboard.choices import choose, remember, remembered, sweep_names
from dashboard.colours import looks
from dashboard.downloads import downloads
from dashboard.show import picture_choice
from dashboard.speed_table import columns, speed_table
from dashboard.tables import list_height
from db.queries import CellSummary

ALL = "all sweeps"
PARTS = {
    "bytes": "Bytes by tier",
    "time": "Over time",
    "transfers": "Transfers",
    "latency": "Latency",
    "roofline": "Roofline",
}


def page() -> None:
    """Show the page."""
    st.title("Memory & speed")
    source = data.source()
    names = data.names_of_sweeps(source.key, source.engine)
    if not names:
        data.nothing_yet("The database holds no sweep.")
    boxes = st.columns(3)
    with boxes[0]:
        chosen = choose("Sweep", [*names, ALL], "sweep", sweep_names({**names, ALL: ALL}))
    sweep_id = None if chosen == ALL else chosen
    there = data.places(source.key, source.engine, sweep_id)
    if not there:
        st.text("This sweep has no cells.")
        return
    with boxes[1]:
        model = choose("Model", sorted({place.model for place in there}), "model")
    with boxes[2]:
        options = sorted({place.benchmark for place in there if place.model == model})
        benchmark = choose("Benchmark", options, "benchmark")
    with st.container():  # always there: what follows keeps its place, and the browser what it has drawn
        cells = _one_protocol(data.summaries(source.key, source.engine, sweep_id, model, benchmark))
    part = _part()
    speeds = data.speeds(source.key, source.engine, sweep_id, model, benchmark)
    devices = data.device_speeds(source.key, source.engine, tuple(cell.fingerprint for cell in cells))
    if all(cell.n == 0 for cell in cells):
        st.info("No sample of this selection has finished yet.", icon=":material/hourglass_empty:")
    else:
        look = looks(data.all_policies(source.key, source.engine))
        if part == "time":
            speed_views.over_time(source, cells, (sweep_id,) if sweep_id else tuple(names))
        elif part == "transfers":
            speed_views.moves(cells, devices)
        elif part == "latency":
            speed_views.latency(cells, speeds, look)
        elif part == "roofline":
            speed_views.roof(cells, devices, look)
        else:
            speed_views.tiers(cells, speeds)
    table = speed_table(cells, speeds, devices)
    st.subheader("All measures")
    st.dataframe(
        table,
        hide_index=True,
        height=list_height(len(table)),
        column_config=columns(table),
        placeholder="–",
        alt="Memory and speed of the selected cells, the fastest first",
    )
    downloads(table, "memory and speed")
    picture_choice()


def _part() -> str:
    """Ask what to look at. Only that is drawn."""
    wanted = remembered("part")
    start = wanted if wanted in PARTS else "bytes"
    # The key: without one the widget would be another as soon as the URL, its default, has changed.
    chosen = st.segmented_control(
        "Part",
        list(PARTS),
        default=start,
        required=True,
        format_func=PARTS.__getitem__,
        label_visibility="collapsed",
        key="choose part",
    )
    remember("part", chosen)
    return chosen or start


def _one_protocol(cells: list[CellSummary]) -> list[CellSummary]:
    """Return the cells of one protocol, asking which if there are several: other token limits, other lengths."""
    counts = Counter(cell.protocol for cell in cells)
    if len(counts) <= 1:
        return cells
    st.warning(
        f"This selection was measured under {len(counts)} different protocols. Bytes and times depend on lengths, and "
        "these on token limits and sampling: one protocol is shown at a time.",
        icon=":material/rule:",
    )
    options = [protocol for protocol, _ in counts.most_common()]
    protocol = choose("Protocol", options, "protocol", lambda key: f"{key[:8]} ({counts[key]} cells)")
    return [cell for cell in cells if cell.protocol == protocol]
