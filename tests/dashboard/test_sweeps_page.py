"""The page Sweeps: the grid of cells, what is left and what it cost, and rows that stay chosen when others come."""

import shutil
import time
from datetime import UTC, datetime, timedelta

import pandas as pd
import plotly.graph_objects as go
import pytest
from streamlit.testing.v1 import AppTest

from dashboard import sweep_facts, sweep_grid, sweep_views
from db import queries
from db.actors import ActorInfo, Arrivals, CoordinatorInfo, Loss
from db.failures import FailedSample
from db.progress import CellProgress
from jobs.failures import reasons

NOW = datetime(2030, 1, 1, 12, tzinfo=UTC)
CHROMIUM = next((found for name in ("chromium", "chromium-browser") if (found := shutil.which(name))), None)


def cell(place, state="done", model="m", benchmark="b"):
    done, failed = {"done": (4, 0), "running": (2, 0), "waiting": (0, 0), "partial": (3, 1), "failed": (0, 4)}[state]
    return CellProgress(f"f{place}", place, model, benchmark, f"p{place} <b>", "h2o", "protocol", 4, done, failed, 1)


def squares(figure):
    return [value for row in figure.data[0].z for value in row if value is not None]


def test_grid_has_a_square_for_each_cell():
    states = ["done", "running", "waiting", "partial", "failed"]
    cells = [cell(place, state) for place, state in enumerate(states)]
    figure = sweep_grid.cell_grid(cells)
    go.Figure(figure.to_dict())
    assert [list(sweep_grid.STATES)[value] for value in squares(figure)] == states
    told = figure.data[0].customdata[0]
    assert "p0 &lt;b&gt;" in told[0]  # a label is text, not markup
    assert "2 of 4 samples" in told[1]
    assert "failed 1" in told[3]
    names = {trace.name for trace in figure.data if trace.showlegend}
    assert names == {"✔ done 1", "▶ running 1", "… waiting 1", "◐ partly failed 1", "✘ failed 1"}
    assert "1 running" in sweep_grid.in_words(cells)
    stopped = sweep_grid.cell_grid(cells, running=False)
    assert "▶ begun 1" in {trace.name for trace in stopped.data}
    assert "begun: 2 of 4" in stopped.data[0].customdata[0][1]


def test_grid_groups_by_model_and_benchmark():
    cells = [cell(place, model=f"org/m{place % 2}", benchmark="b") for place in range(250)]
    figure = sweep_grid.cell_grid(cells[::-1])
    assert list(figure.layout.yaxis.ticktext) == ["m0 · b", "m1 · b"]
    assert list(figure.layout.yaxis.tickvals) == [0, 2]  # 125 squares take two rows
    assert len(squares(figure)) == 250
    assert all(
        f">p{place * 2} " in figure.data[0].customdata[0][place] for place in (0, 50, 99)
    )  # in the sweep's order


def test_grid_of_two_thousand_cells_is_quick_and_small():
    cells = [cell(place, "done", f"m{place % 5}", f"b{place % 4}") for place in range(2000)]
    start = time.process_time()
    text = sweep_grid.cell_grid(cells).to_json()
    assert time.process_time() - start < 1.0
    assert len(text) < 600_000
    assert len(sweep_grid.cell_grid(cells).data) < 5  # one heat map: not a mark for each
    assert "No cells" in sweep_grid.cell_grid([]).to_json()


def sweep(**changes):
    values = {"id": "s", "name": "s", "state": "running", "created_at": NOW, "heartbeat_at": NOW, "cells": 1}
    counts = {"expected": 100, "done": 40, "failed": 10, "spec": {}, "environment": {}}
    return queries.SweepInfo(**{**values, **counts, **changes})


def test_time_left():
    came = Arrivals(20, NOW - timedelta(seconds=100), NOW)
    left = sweep_facts.time_left(sweep(), "running", came)
    assert (left.value, left.note) == ("4 min", "12 samples/min in the last 2 min")
    none = Arrivals(0, NOW - timedelta(seconds=100), NOW)
    for fact in (
        sweep_facts.time_left(sweep(), "running", none),
        sweep_facts.time_left(sweep(), "running", None),
        sweep_facts.time_left(sweep(), "interrupted", None),
        sweep_facts.time_left(sweep(done=90), "running", came),
    ):
        assert fact.value == "–"
        assert fact.note
    assert "50 samples are left" in sweep_facts.time_left(sweep(), "silent", None).note


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0 s"), (89.4, "89 s"), (90, "2 min"), (3599, "1 h 0 min"), (12_000, "3 h 20 min"), (190_800, "2 d 5 h")],
)
def test_durations(seconds, words):
    assert sweep_facts.duration(seconds) == words


def actor(name, device, busy_s, host="h"):
    return ActorInfo(name, host, device, 2, 8, busy_s, NOW, NOW + timedelta(seconds=busy_s))


def test_cost_in_gpu_hours_and_cpu_hours():
    actors = [actor("a", "NVIDIA H100", 3600.0), actor("b", "NVIDIA H100", 1800.0), actor("c", "cpu (x86_64)", 7200.0)]
    gpu, cpu = sweep_facts.costs(actors, {"cluster": {"gpus_per_actor": 2, "cpus_per_actor": 4}})
    assert (gpu.value, cpu.value) == ("3.00 h", "8.00 h")
    assert "2 GPUs each" in gpu.note
    for spec in ({}, {"cluster": None}, {"cluster": {"gpus_per_actor": None}}, {"cluster": "odd"}):
        assert [fact.value for fact in sweep_facts.costs(actors, spec)] == ["1.50 h", "2.00 h"]
    gpu, cpu = sweep_facts.costs(actors[2:], {})
    assert (gpu.value, gpu.note, cpu.value) == ("–", "all shards ran on CPUs", "2.00 h")
    assert [fact.value for fact in sweep_facts.costs([], {})] == ["–", "–"]


def test_tables_of_actors_and_machines():
    actors = [actor("a", "cpu", 30.0), actor("b", "cpu", 10.0), actor("c", "cpu", 0.0, host="other")]
    machines = sweep_facts.machine_table(actors)
    assert list(machines["actors"]) == [2, 1]
    assert machines["last shard"][0] == NOW + timedelta(seconds=30)
    table = sweep_facts.actor_table(actors)
    assert table["samples/s"][0] == pytest.approx(8 / 30)
    assert pd.isna(table["samples/s"][2])  # no time: no rate
    assert sweep_facts.actor_table([]).empty
    held = sweep_facts.coordinator_table([CoordinatorInfo("host:1", 3, NOW)])
    assert list(held["cells held"]) == [3]
    assert sweep_facts.losses_in_words([Loss("stalled", 1200, NOW)]) == "actors that hung: 1,200"
    assert sweep_facts.losses_in_words([]) == ""


def test_failures_grouped_by_reason():
    failed = [
        FailedSample(
            fingerprint=f"f{place % 2}", model="m", benchmark="b", policy="p", problem_id=str(place), repeat=0,
            error=f"{place}#0: prompt has {place + 900} tokens, at most 512" if place else "given up after 3 attempts",
        )
        for place in range(5)
    ]  # fmt: skip
    table = sweep_views.failure_table(reasons(failed))
    assert list(table["samples"]) == [4, 1]
    assert list(table["cells"]) == [2, 1]
    assert list(table["refused"]) == [True, False]
    assert table["reason"][0] == "prompt has 901 tokens, at most 512"
    assert sweep_views.failure_table([]).empty


def run_page() -> None:
    from dashboard import sweeps_page

    sweeps_page.page()


@pytest.fixture
def visit(database, monkeypatch):
    def open_page(kind, **query):
        monkeypatch.setenv("TIERCACHE_DB", kind if "://" in kind else database(kind))
        app = AppTest.from_function(run_page, default_timeout=30)
        app.query_params.update(query)
        app.run()
        assert not app.exception, [error.message for error in app.exception]
        return app

    return open_page


def metrics(app):
    return {metric.label: metric.value for metric in app.metric}


def test_the_page_tells_who_worked_and_what_failed(visit, made_up):
    fingerprint = made_up.cell(7, 40).fingerprint
    app = visit("fill", cell=fingerprint)
    assert metrics(app)["GPU hours so far"] == "0.15 h"  # nine shards of a minute on what isn't a CPU
    tables = {tuple(frame.value.columns[:2]): frame.value for frame in app.dataframe}
    assert list(tables["samples", "cells"]["reason"]) == ["RuntimeError: made up"]
    assert list(tables["actor", "host"]["actor"]) == ["actor-0"]
    assert list(tables["host", "device"]["shards"]) == [9]
    words = "\n".join(text.value for text in app.text)
    assert f"Cell {fingerprint}" in words  # the chosen cell's details


def test_cells_by_state(visit):
    app = visit("fill", state="waiting")
    cells = next(frame.value for frame in app.dataframe if "fingerprint" in frame.value)
    assert list(cells["policy"]) == ["random budget=0.5"]
    box = next(box for box in app.selectbox if box.label == "Cells")
    assert box.value == "waiting"
    box.select("all")
    app.run()
    cells = next(frame.value for frame in app.dataframe if "fingerprint" in frame.value)
    assert list(cells["policy"][:2]) == ["full", "hierarchy hbm=0.5 evict=0.03"]  # the sweep's order
