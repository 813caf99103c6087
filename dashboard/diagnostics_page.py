"""What policies threw away that attention came back for, from which token on texts part, and which scorer knew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd
import streamlit as st
from sqlalchemy import Engine

from dashboard import data, occlusion_view
from dashboard import diagnostic_figures as figures
from dashboard.choices import choose, sweep_names
from dashboard.colours import looks
from dashboard.downloads import downloads
from dashboard.measures import MEASURES, Measure
from dashboard.show import show
from dashboard.tables import list_height
from db.diagnostic_detail import LayerMeans, layer_means, measured_counts
from db.queries import CellSummary, DiagnosticSummary, SweepInfo, diagnostic_summaries

Found = tuple[dict[str, DiagnosticSummary], dict[str, dict[str, int]]]


def page() -> None:
    """Show the page."""
    st.title("Diagnostics")
    source = data.source()
    sweeps = data.sweeps(source)
    if not sweeps:
        data.nothing_yet("The database holds no sweep.")
    names = {sweep.id: sweep.name for sweep in sorted(sweeps, key=lambda sweep: not _asks(sweep))}
    columns = st.columns(3)
    with columns[0]:
        sweep_id = choose("Sweep", list(names), "sweep", sweep_names(names))
    there = data.places(source.key, source.engine, sweep_id)
    if not there:
        st.text("This sweep has no cells.")
        return
    with columns[1]:
        model = choose("Model", sorted({place.model for place in there}), "model")
    there = [place for place in there if place.model == model]
    with columns[2]:
        benchmark = choose("Benchmark", sorted({place.benchmark for place in there}), "benchmark")
    protocols = [place.protocol for place in there if place.benchmark == benchmark]
    protocol = protocols[0]
    with st.container():  # always there: what follows keeps its place, and the browser what it has drawn
        if len(protocols) > 1:
            protocol = choose("Protocol", protocols, "protocol", lambda key: key[:8])
    summaries = data.summaries(source.key, source.engine, sweep_id, model, benchmark)
    cells = [cell for cell in summaries if cell.protocol == protocol]
    found, counts = _diagnosed(source.key, source.engine, sweep_id, tuple(cell.fingerprint for cell in cells))
    _measured(source, cells, found, counts)
    occlusion_view.show_checks(source, sweep_id)


def _asks(sweep: SweepInfo) -> bool:
    return bool(sweep.spec.get("diagnostics"))


@st.cache_data(max_entries=32, show_spinner=False)
def _diagnosed(key: tuple[str, int], _engine: Engine, sweep_id: str, fingerprints: tuple[str, ...]) -> Found:
    wanted = set(fingerprints)
    found = {name: each for name, each in diagnostic_summaries(_engine, sweep_id).items() if name in wanted}
    return found, measured_counts(_engine, sweep_id, sorted(found)) if found else {}


@st.cache_data(max_entries=32, show_spinner=False)
def _layers(key: tuple[str, int], _engine: Engine, fingerprints: tuple[str, ...]) -> dict[str, LayerMeans]:
    return layer_means(_engine, fingerprints)


def _measured(
    source: data.Source,
    cells: Sequence[CellSummary],
    found: Mapping[str, DiagnosticSummary],
    counts: Mapping[str, Mapping[str, int]],
) -> None:
    if not found:
        st.info("No sample here was measured against the full cache", icon=":material/troubleshoot:")
        st.text("It is an option of a run, which generates the same samples again and stores only what is measured:")
        st.code("diagnostics: true      # in the sweep file, then run it again", language="yaml")
        return
    with st.columns(3)[0]:
        measure = MEASURES[choose("Measure", list(MEASURES), "measure", lambda key: MEASURES[key].name)]
    st.caption(_definition(measure))
    look = looks(data.all_policies(source.key, source.engine))
    axes: tuple[figures.Axis, ...] = ("bytes", "accuracy")
    for column, axis in zip(st.columns(2, gap="medium"), axes, strict=True):
        figure = figures.against(cells, found, counts, measure, look, axis)
        alt = figures.against_in_words(cells, found, measure, axis)
        show(figure, alt=alt, name=f"{measure.field} against {axis}", place=column)
    st.caption(
        "The dashed line is the full cache's own value: what rounding alone leaves. Hollow: a mean "
        f"of fewer than {figures.FEW} samples."
    )
    if measure.layers is not None:
        layers = _layers(source.key, source.engine, tuple(found))
        alt = figures.by_layer_in_words(cells, layers, measure)
        show(figures.by_layer(cells, layers, measure), alt=alt, name=f"{measure.field} by layer")
        most = max((each.samples for each in layers.values()), default=0)
        st.caption(f"Layers count from the input. Means of at most {most} samples of a cell, its first ones.")
    st.subheader("All measures")
    table = diagnostic_table(cells, found, counts)
    st.dataframe(
        table,
        hide_index=True,
        height=list_height(len(table)),
        placeholder="–",
        alt="All measures of the selected cells with the number of samples that each is of",
        column_config=_columns(),
    )
    downloads(table, "diagnostics")
    with st.expander("What the columns mean"):
        for each in MEASURES.values():
            st.text(f"{each.name}: {each.meaning}. {each.needs[0].upper()}{each.needs[1:]}.")


def _definition(measure: Measure) -> str:
    closer = "" if measure.better is None else f" {measure.better.capitalize()} is closer to the full cache."
    return f"{measure.meaning[0].upper()}{measure.meaning[1:]}.{closer}"


def diagnostic_table(
    cells: Sequence[CellSummary],
    found: Mapping[str, DiagnosticSummary],
    counts: Mapping[str, Mapping[str, int]],
) -> pd.DataFrame:
    """One row a cell, in the sweep's order; beside each number how many samples it is of, and why one is missing."""
    rows = []
    for cell in cells:
        summary = found.get(cell.fingerprint)
        row: dict[str, object] = {
            "policy": cell.policy,
            "accuracy": cell.accuracy,
            "resident share": cell.resident_share,
            "n": cell.n,
            "diagnosed": summary.diagnosed if summary else 0,
        }
        reasons = [] if summary else ["not diagnosed"]
        for each in MEASURES.values():
            row[each.name] = each.of(summary)
            row[f"n of {each.name}"] = counts.get(cell.fingerprint, {}).get(each.field, 0)
            if summary and each.of(summary) is None:
                reasons.append(f"{each.name} {each.needs}")
        row["parts from full"] = summary.diverged_share if summary else None
        row["missing"] = "; ".join(reasons) or None
        rows.append(row)
    return pd.DataFrame(rows)


def _columns() -> dict[str, object]:
    config: dict[str, object] = {
        "policy": st.column_config.TextColumn(pinned=True),
        "missing": st.column_config.TextColumn(help="why the row has dashes"),
        "parts from full": st.column_config.NumberColumn(
            format="percent", help="samples in which a token differs, of the diagnosed"
        ),
    }
    for name in ("accuracy", "resident share"):
        config[name] = st.column_config.NumberColumn(format="percent")
    for each in MEASURES.values():
        form = "%.1f" if each.unit == "token" else "%.4f"
        config[each.name] = st.column_config.NumberColumn(format=form, help=each.meaning)
        config[f"n of {each.name}"] = st.column_config.NumberColumn("n", help=f"samples that have it: {each.needs}")
    return config
