"""The capacity page and its charts: known sizes, state in the URL, no database, nothing thrown."""

import plotly.graph_objects as go
import pytest
from streamlit.testing.v1 import AppTest

from dashboard import capacity_figures as figures
from dashboard.capacity_page import CONTEXTS
from dashboard.colours import looks
from tiercache.capacity import T1_READS, capacity
from tiercache.gpus import GPUS, Machine
from tiercache.policy_text import read_policy
from tiercache.shapes import KNOWN

SEVEN = "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B"
SEVENTY = "deepseek-ai/DeepSeek-R1-Distill-Llama-70B"


def held(policy, context=2048, model=SEVEN, **how):
    return capacity(KNOWN[model], read_policy(policy), context, **how)


FULL = held("full")
STREAM = held("hierarchy hbm=0.3 evict=0 t1_read=stream")
LOOK = looks([("full", "full"), (STREAM.policy.label, "hierarchy")])
BUILDERS = {
    "device": lambda found: figures.device_bars(found, 8),
    "bus": lambda found: figures.bus_bars(found, 8),
    "rows": lambda found: figures.rows_over_context({each.policy.label: [each] for each in found}, LOOK),
    "speed": lambda found: figures.speed_over_rows(found, LOOK),
}


@pytest.fixture(params=list(BUILDERS))
def build(request):
    return BUILDERS[request.param]


def test_every_figure_is_labelled(build):
    figure = build([FULL, STREAM])
    assert figure.layout.title.text
    assert figure.layout.xaxis.title.text
    assert figure.layout.yaxis.title.text
    assert all(trace.hovertemplate for trace in figure.data)
    assert "hierarchy evict=0 hbm=0.3" in figures.alt_text(figure, [FULL, STREAM])
    go.Figure(figure.to_dict())  # every property is one that plotly knows


def test_every_figure_stands_a_gpu_that_is_too_small(build):
    tiny = Machine(2**20)
    figure = build([held("full", machine=tiny)])
    figure.to_json()
    assert figure.layout.title.text


def test_stacked_bars_add_up_to_the_bytes():
    figure = figures.device_bars([FULL, STREAM], 8)
    names = {trace.name for trace in figure.data}
    assert names == {"weights", "T0, full precision", "staging of T1"}
    for place, each in enumerate((FULL, STREAM)):
        total = sum(trace.x[place] or 0 for trace in figure.data) * 2**30
        assert total == pytest.approx(each.weights + 8 * each.row)
    assert [shape.x0 for shape in figure.layout.shapes] == pytest.approx([80, 72])
    assert {trace.name for trace in figures.device_bars([held("kivi")], 8).data} >= {"T2, quantised"}
    mirror = held("hierarchy hbm=0.3 evict=0", t1_read="mirror")
    assert {trace.name for trace in figures.device_bars([mirror], 1).data} >= {"copy of T1"}


def test_bus_bars_show_every_way_to_read():
    figure = figures.bus_bars([FULL, STREAM], 8)
    assert [trace.name for trace in figure.data] == list(T1_READS)
    assert all(trace.x[0] is None for trace in figure.data), "the full cache has nothing on the host"
    by_name = {trace.name: trace.customdata[1] for trace in figure.data}
    assert by_name["mirror"] == "448.0 KiB"
    (note,) = figures.bus_bars([FULL], 8).layout.annotations
    assert "nothing crosses" in note.text


def test_lines_of_rows_fall_and_stop_where_nothing_fits():
    found = [held("full", context, machine=GPUS["RTX4090-24GB"]) for context in CONTEXTS]
    (line,) = figures.rows_over_context({"full": found}, LOOK).data
    assert list(line.x) == CONTEXTS
    rows = [count or 0 for count in line.y]
    assert rows == sorted(rows, reverse=True)
    assert rows[-1] == 1
    assert line.y[0] == found[0].most_rows
    (note,) = figures.rows_over_context({"full": [held("full", model=SEVENTY)]}, LOOK).layout.annotations
    assert "Not one sequence" in note.text


@pytest.mark.parametrize(("most", "points"), [(0, []), (1, [1]), (2, [1, 2]), (7, [1, 2, 4, 7]), (8, [1, 2, 4, 8])])
def test_points_of_the_speed_line(most, points):
    assert figures.batches(most) == points


# The page itself


def run_page():  # its source is run as the app, so it imports for itself
    from dashboard.capacity_page import page

    page()


@pytest.fixture
def visit(monkeypatch, tmp_path):
    """Return a function that opens the page where no database is, and has seen no exception."""
    monkeypatch.setenv("TIERCACHE_DB", f"sqlite:///{tmp_path}/missing.db")

    def open_page(**query):
        app = AppTest.from_function(run_page, default_timeout=60)
        for key, value in query.items():
            app.query_params[key] = value
        return checked(app.run())

    return open_page


def checked(app):
    assert not app.exception, [error.message for error in app.exception]
    return app


def words(app):
    return "\n".join(str(part.value) for part in [*app.text, *app.warning, *app.caption, *app.code])


def shown(app):
    return {metric.label: metric.value for metric in app.metric}


def test_the_page_without_a_database_and_with_nothing_in_the_url(visit):
    app = visit(planned=SEVEN)
    assert [title.value for title in app.title] == ["Capacity"]
    assert "57,344 bytes" in words(app)
    assert "401,408: 7 times as much" in words(app)
    assert "114,688,000 bytes" in words(app)
    assert "2 * layers * kv_heads * head_dim * element" in words(app)
    assert app.query_params["policy"] == "hierarchy hbm=0.3 evict=0.03"
    assert app.query_params["context"] == "8192"


def test_what_the_page_says_is_what_is_computed(visit):
    app = visit(planned=SEVEN, context="4096", batch="8", policy="h2o budget=0.5", gpu="A100-80GB")
    found = held("h2o budget=0.5", 4096, machine=GPUS["A100-80GB"])
    assert shown(app)["Largest batch"] == f"{found.most_rows:,} rows"
    assert shown(app)["Tokens/s at 8 rows"] == f"≤ {found.tokens_per_s(8):,.0f}"
    assert shown(app)["Device, a sequence"] == "112.1 MiB"
    assert shown(app)["Bus, a step and sequence"] == "0 B"


def test_choices_go_to_the_url(visit):
    app = visit(planned=SEVEN, context="1024", policy="full")
    next(box for box in app.selectbox if box.label == "Policy").select("kivi")
    assert checked(app.run()).query_params["policy"] == "kivi"
    next(box for box in app.text_input if box.label == "Knobs").input("packed_bits=4")
    assert checked(app.run()).query_params["policy"] == "kivi packed_bits=4"
    next(box for box in app.selectbox if box.label == "Policy").select("h2o")
    assert checked(app.run()).query_params["policy"] == "h2o budget=0.25"
    next(box for box in app.selectbox if box.label == "Batch (rows)").select("64")
    assert "Tokens/s at 64 rows" in shown(checked(app.run()))


def test_own_numbers(visit):
    numbers = {"gpu_gib": "40", "hbm_gbps": "1555", "bus_gbps": "32", "host_gbps": "150"}
    app = visit(planned=SEVEN, context="2048", policy="full", gpu="own numbers", **numbers)
    machine = Machine(40 * 2**30, 1555.0, 32.0, 150.0)
    assert shown(app)["Largest batch"] == f"{held('full', machine=machine).most_rows:,} rows"


@pytest.mark.parametrize(
    ("name", "wrong"),
    [("gpu_gib", "0"), ("gpu_gib", "inf"), ("hbm_gbps", "-1"), ("bus_gbps", "nan"), ("host_gbps", "many")],
)
def test_own_numbers_that_are_none(visit, name, wrong):
    app = visit(planned=SEVEN, context="1024", policy="full", gpu="own numbers", **{name: wrong})
    assert "This can't be planned" in words(app)


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ("h2o budget=7.5", "7.5"),
        ("h2o buget=5", "Did you mean 'budget'"),
        ("h2o budget=", "budget"),
        ("h2o !!", "is a name and knobs"),
        ("h2o budget=0.5 scorer=mine.py:Scorer", "scorer: this page takes"),
        ("thinkv budget=256 segment=1", "segments from 32"),
        ("h2o a=" + "[" * 5000, "is a name and knobs"),
    ],
)
def test_bad_knobs_are_explained_in_plain_text(visit, policy, said):
    app = visit(planned=SEVEN, context="1024", policy=policy)
    assert "This can't be planned" in words(app)
    assert any(said in text.value for text in app.text)


def test_nonsense_in_the_url_is_harmless(visit):
    names = ("planned", "context", "prompt", "batch", "policy", "gpu", "t1_read", "gpu_gib", "hbm_gbps")
    app = visit(**dict.fromkeys(names, "?"))
    assert shown(app)


def test_what_does_not_fit_is_said(visit):
    assert "weights alone don't fit" in words(visit(planned=SEVENTY, context="1024", policy="full"))
    app = visit(planned=SEVEN, context="16384", policy="full", batch="512")
    assert "512 rows don't fit" in words(app)
    mistral = visit(planned="mistralai/Mistral-7B-Instruct-v0.3", context="65536", policy="full")
    assert "32,768 tokens at most" in words(mistral)
