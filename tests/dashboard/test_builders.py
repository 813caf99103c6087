"""Figures, tables, colours and wording, without Streamlit."""

import dataclasses
import html
import io
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pandas as pd
import plotly.graph_objects as go
import pytest

from dashboard import figures, launch, wording
from dashboard.colours import PRESETS, looks
from dashboard.samples_page import around, shared_prefix
from dashboard.tables import (
    csv_safe,
    event_table,
    progress_table,
    sample_table,
    summary_table,
    sweep_table,
    why_missing,
)
from db import queries
from db.connection import open_engine


@pytest.fixture(params=["memory", "share", "throughput", "outcomes", "tiers"])
def build(request, look):
    return {
        "memory": lambda cells: figures.accuracy_against_memory(cells, look, "bytes"),
        "share": lambda cells: figures.accuracy_against_memory(cells, look, "share"),
        "throughput": lambda cells: figures.accuracy_against_throughput(cells, look),
        "outcomes": figures.outcome_bars,
        "tiers": figures.memory_bars,
    }[request.param]


def test_every_figure_is_labelled(build, cells):
    figure = build(cells)
    assert figure.layout.title.text
    assert figure.layout.xaxis.title.text
    assert figure.layout.yaxis.title.text
    assert all(trace.hovertemplate for trace in figure.data)
    assert "h2o budget=0.5" in figures.alt_text(figure, cells)
    go.Figure(figure.to_dict())  # every property is one that plotly knows


def test_every_figure_stands_missing_values(build, cells):
    bare = dataclasses.replace(
        cells[0],
        **{
            field.name: None
            for field in dataclasses.fields(cells[0])
            if isinstance(getattr(cells[0], field.name), float | bool)
        },
        devices=(),
    )
    for some in ([], [bare], [bare, cells[1]]):
        build(some).to_json()


def test_figures_refuse_mixed_protocols(build, cells):
    with pytest.raises(ValueError, match="can't share a chart"):
        build([cells[0], dataclasses.replace(cells[1], protocol="other")])


def test_scatter_has_one_mark_a_policy_with_its_interval(cells, look):
    figure = figures.accuracy_against_memory(cells, look, "share")
    assert len([trace for trace in figure.data if trace.mode == "markers"]) == len([c for c in cells if c.n])
    by_name = {trace.name: trace for trace in figure.data}
    cell = next(cell for cell in cells if cell.policy == "h2o budget=0.5")
    mark = by_name["h2o budget=0.5"]
    assert mark.x[0] == pytest.approx(0.5, abs=0.01)
    assert mark.y[0] == cell.accuracy
    assert mark.y[0] + mark.error_y.array[0] == pytest.approx(cell.accuracy_high)
    assert mark.y[0] - mark.error_y.arrayminus[0] == pytest.approx(cell.accuracy_low)
    assert mark.marker.color == look[cell.policy].colour


def test_throughput_of_a_shared_node_is_marked(cells, look):
    symbols = {trace.name: trace.marker.symbol for trace in figures.accuracy_against_throughput(cells, look).data}
    assert [name for name, symbol in symbols.items() if symbol.endswith("-open")] == ["streaming budget=0.5"]
    alone = [cell for cell in cells if cell.exclusive]
    assert "hollow" not in figures.accuracy_against_throughput(alone, look).to_json()
    assert "hollow" not in figures.accuracy_against_memory(cells, look).to_json()


def test_long_labels_are_shortened_and_still_tell_policies_apart():
    stem = "hierarchy budget=bytes:{} evict=0 hbm=0 recent=16 pin_prompt=False every=16"
    labels = [stem.format(budget) for budget in (0.2, 0.35, 0.5)] + ["full", "a<b " * 20]
    short = wording.shortened(labels)
    assert len(set(short)) == len(labels)
    assert all(len(html.unescape(label)) <= 38 for label in short)
    assert [budget in label for budget, label in zip(("0.2", "0.35", "0.5"), short, strict=False)] == [True] * 3
    assert short[3] == "full"
    assert "<" not in short[4]
    assert wording.shortened(["x" * 50] * 2)[0] == wording.shortened(["x" * 50])[0]


@pytest.mark.parametrize("rows", [1, 10, 200])
def test_rows_of_a_list_have_room_for_their_labels(rows, cells):
    many = [
        dataclasses.replace(cells[0], fingerprint=str(i), policy=f"long {'setting=1 ' * 8}{i}") for i in range(rows)
    ]
    for figure in (figures.outcome_bars(many), figures.memory_bars(many)):
        plot = figure.layout.height - figure.layout.margin.t - figure.layout.margin.b
        assert plot >= 20 * rows
        assert len(figure.layout.yaxis.ticktext) == rows
        assert all(len(label) <= 38 for label in figure.layout.yaxis.ticktext)
        assert many[0].policy in figure.data[0].hovertemplate[0]


def test_many_policies_share_legend_entries_by_preset(cells):
    many = [dataclasses.replace(cells[4], fingerprint=str(i), policy=f"h2o budget={i}") for i in range(40)]
    figure = figures.accuracy_against_throughput(many, looks((c.policy, c.policy_name) for c in many))
    assert [trace.name for trace in figure.data if trace.showlegend] == ["h2o"]
    assert figure.layout.height < 500


def test_a_policy_has_one_colour_in_all_charts(cells, look):
    marks = [
        trace
        for figure in (figures.accuracy_against_memory(cells, look), figures.accuracy_against_throughput(cells, look))
        for trace in figure.data
        if trace.mode == "markers"
    ]
    assert {trace.marker.color for trace in marks} == {look[cell.policy].colour for cell in cells if cell.n}


def test_charts_side_by_side_are_of_one_height(cells, look):
    unmeasured = [dataclasses.replace(cells[0], decode_tokens_per_s=None), *cells[1:]]
    left, right = (
        figures.accuracy_against_memory(unmeasured, look),
        figures.accuracy_against_throughput(unmeasured, look),
    )
    assert left.layout.height == right.layout.height
    assert len(left.data) == len(right.data) + 2  # one unmeasured, and the front


def test_bars_of_equal_labels_stay_apart(cells):
    twin = dataclasses.replace(cells[0], fingerprint="another")
    assert len(set(figures.outcome_bars([cells[0], twin]).data[0].y)) == 2


def test_outcome_shares_sum_to_one(cells):
    figure = figures.outcome_bars(cells)
    bars = [trace.x for trace in figure.data if trace.type == "bar"]
    assert [sum(shares) for shares in zip(*bars, strict=True)] == pytest.approx([1] * 9)
    (beside,) = (trace for trace in figure.data if trace.type == "scatter")
    assert set(beside.x) == {figure.layout.xaxis.range[1]}, "plotly draws nothing that lies beyond the axis"
    assert len(beside.text) == 9


def test_labels_are_text_not_markup(cells):
    odd = dataclasses.replace(cells[0], policy="<a href='x'>%{y}</a>")
    text = figures.accuracy_against_memory([odd], looks([(odd.policy, "full")])).to_json()
    assert "<a" not in text.replace("\\u003c", "<")


def test_colours_are_fixed_distinct_and_shared_by_no_two_policies(cells, look):
    assert len({each.colour for each in look.values()}) == len(look)
    assert looks(reversed([(cell.policy, cell.policy_name) for cell in cells])) == look
    markers = {
        cell.policy_name: {look[c.policy].marker for c in cells if c.policy_name == cell.policy_name} for cell in cells
    }
    assert all(len(found) == 1 for found in markers.values())
    assert looks([("mine x=1", "mine")]) == looks([("mine x=1", "mine")])
    assert len({marker for _, marker in PRESETS.values()}) == len(PRESETS)


def test_summary_table_and_its_csv(cells):
    table = summary_table(cells)
    assert len(table) == len(cells)
    read = pd.read_csv(io.BytesIO(csv_safe(table)))
    assert list(read["policy"]) == [cell.policy for cell in cells]
    assert read["accuracy"][0] == pytest.approx(cells[0].accuracy)
    assert csv_safe(pd.DataFrame({"a": ["=1+1", "ok", None], "b": [-1, 2, 3]})) == b"a,b\n'=1+1,-1\nok,2\n,3\n"
    assert summary_table([]).empty
    assert table["on front"].sum() >= 1
    reasons = dict(zip(table["policy"], table["missing"], strict=True))
    assert reasons["random budget=0.5"] == "no sample finished yet"
    assert reasons["full"] == ""
    assert "bytes" in why_missing(dataclasses.replace(cells[0], hbm_bytes=None))
    assert "throughput" in why_missing(dataclasses.replace(cells[0], decode_tokens_per_s=None))
    assert why_missing(dataclasses.replace(cells[0], n=0, failed=3)) == "all samples failed"


def test_sweep_cell_event_and_sample_tables(database):
    engine = open_engine(database("fill"), read_only=True)
    (sweep,) = queries.list_sweeps(engine)
    table = sweep_table([sweep], sweep.heartbeat_at)
    assert (table["state"][0], table["progress"][0]) == ("▶ running", pytest.approx(340 / 400))
    assert sweep_table([sweep], sweep.heartbeat_at + timedelta(hours=1))["state"][0] == "? no heartbeat"
    states = list(progress_table(queries.sweep_progress(engine, "sweep-1"))["state"])
    assert states[:3] == ["▶ running", "◐ partly failed", "… waiting"]
    assert len(event_table(queries.list_events(engine, "sweep-1"))) == 9
    assert sample_table([]).empty
    assert sweep_table([], datetime.now(UTC)).empty
    engine.dispose()


def test_wording():
    assert [wording.human_bytes(count) for count in (0, 1023, 1536, 3 * 2**30, None)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "3.0 GiB",
        "– (not measured)",
    ]
    assert wording.byte_unit(5e6) == (2.0**20, "MiB")
    assert wording.byte_unit(0) == (1.0, "B")
    assert (wording.percent(0.1234), wording.percent(None)) == ("12.3%", "– (not measured)")
    assert wording.number(1234.56, "tokens/s") == "1,234.6 tokens/s"
    assert wording.number(None, "s", reason="no shard has ended") == "– (no shard has ended)"
    assert shared_prefix("abcd", "abx") == 2
    assert around("abcdef", 3, 2) == "…bc ▶ de…"
    assert around("abc", 3, 5) == "abc ▶ (ends here)"


def test_launch_binds_to_loopback_and_keeps_the_url_out_of_sight():
    secret = "postgresql://me:hunter2@host/db"
    words = launch.command(8501)
    assert words[1:4] == ["-m", "streamlit", "run"]
    assert {"--server.address=127.0.0.1", "--server.port=8501", "--server.headless=true"} <= set(words)
    assert "--browser.gatherUsageStats=false" in words
    assert "hunter2" not in " ".join(words)
    assert launch.environment(secret)["TIERCACHE_DB"] == secret
    assert launch.APP.exists()
    assert "--server.address=0.0.0.0" in launch.command(8501, "0.0.0.0")
    for port in (0, 70000):
        with pytest.raises(ValueError, match="allowed"):
            launch.command(port)
    with pytest.raises(ValueError, match="empty"):
        launch.environment("")


def test_importing_the_dashboard_loads_no_engine():
    code = (
        "import sys, dashboard.sweeps_page, dashboard.compare_page, dashboard.samples_page, dashboard.launch;"
        "print([m for m in ('torch', 'ray', 'transformers', 'tiercache', 'jobs', 'cluster') if m in sys.modules])"
    )
    root = str(launch.APP.parents[1])
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr


def test_labels_that_differ_in_two_settings_keep_both():
    stem = "hierarchy evict={} hbm=0.5 {}recent=32 every=16"
    labels = [stem.format(evict, packed) for evict in (0.05, 0.1) for packed in ("", "packed=0.5 ")]
    assert len(set(wording.shortened(labels))) == 4
    assert wording.shortened(labels)[3] == "hierarchy … evict=0.1 packed=0.5"
