"""The page Diagnostics and its charts: numbers of the database, dashes with reasons, definitions, stored checks."""

import plotly.graph_objects as go
import pytest
from streamlit.testing.v1 import AppTest

from dashboard import diagnostic_figures as figures
from dashboard.colours import looks
from dashboard.diagnostics_page import diagnostic_table
from dashboard.measures import MEASURES
from db.connection import open_engine
from db.diagnostic_detail import layer_means, measured_counts
from db.occlusion import KIND, occlusion_checks
from db.queries import cell_summaries, diagnostic_summaries
from db.rows import DiagnosticRow
from db.writer import Writer
from tiercache.diagnostics.values import MEANING

CHECK = {
    "window": 32,
    "stride": 16,
    "answer": "the <b>answer</b>",
    "chains": ["1", "2", "3"],
    "values": {"attention": [0.2, 0.4, 0.3], "random": [0.1, -0.1, 0.0], "still": [None, None, None]},
    "refused": {"epikv": "needs more layers"},
}


def diagnosed(made_up, url, checks=1):
    """The made-up sweep, of which two policies and the full cache were diagnosed, one of them on short texts."""
    made_up.fill(url, 12)
    cells = {place: made_up.cell(place, 12).fingerprint for place in (0, 1, 4)}
    with Writer.open(url) as writer:
        for place, fingerprint in cells.items():
            writer.record_diagnostics(
                [
                    DiagnosticRow(
                        fingerprint=fingerprint,
                        problem_id=f"problem-{problem:03d}",
                        repeat=0,
                        steps=100 if place != 1 else 20,
                        fmm_acc=None if place == 1 else 0.1 * place,
                        kl=0.01 * place,
                        recall=1 - 0.1 * place,
                        first_divergent=problem if place == 4 else None,
                        lir_rescued=3 if place == 4 else 0,
                        lir_eligible=4 if place == 4 else 0,
                        detail={"layers": {"fmm_acc": [0.1 * place, None], "recall": [1.0, 0.5]}},
                    )
                    for problem in range(12 if place != 1 else 3)
                ]
            )
        for _ in range(checks):
            writer.event("sweep-1", KIND, "checked", fingerprint=cells[0], data=CHECK)
    return url


@pytest.fixture(scope="module")
def url(made_up, tmp_path_factory):
    return diagnosed(made_up, f"sqlite:///{tmp_path_factory.mktemp('diagnosed') / 'd.db'}")


@pytest.fixture(scope="module")
def known(url):
    """Return (cells, summaries, counts, layers, look)."""
    engine = open_engine(url, read_only=True)
    cells = cell_summaries(engine, "sweep-1")
    found = diagnostic_summaries(engine, "sweep-1")
    counts = measured_counts(engine, "sweep-1", list(found))
    look = looks([(cell.policy, cell.policy_name) for cell in cells])
    return cells, found, counts, layer_means(engine, list(found)), look


def test_every_measure_has_a_definition():
    assert set(MEASURES) <= set(MEANING)
    assert all(each.meaning and each.needs for each in MEASURES.values())


@pytest.mark.parametrize("name", MEASURES)
@pytest.mark.parametrize("axis", ["bytes", "accuracy"])
def test_every_chart_is_labelled_and_stands_missing_values(known, name, axis):
    cells, found, counts, layers, look = known
    measure = MEASURES[name]
    figure = figures.against(cells, found, counts, measure, look, axis)
    assert figure.layout.xaxis.title.text
    assert measure.name in figure.layout.yaxis.title.text
    go.Figure(figure.to_dict())
    figures.by_layer(cells, layers, measure).to_json()
    assert measure.name in figures.against_in_words(cells, found, measure, axis)
    assert measure.name in figures.by_layer_in_words(cells, layers, measure)
    empty = figures.against(cells, {}, {}, measure, look, axis)
    assert measure.needs in empty.layout.annotations[0].text.replace("&gt;", ">")


def test_marks_are_the_means_and_few_samples_are_hollow(known):
    cells, found, counts, _, look = known
    figure = figures.against(cells, found, counts, MEASURES["kl"], look, "bytes")
    assert sorted(trace.y[0] for trace in figure.data) == pytest.approx([0.0, 0.01, 0.04])
    hollow = [trace for trace in figure.data if trace.marker.symbol.endswith("-open")]
    assert [trace.y[0] for trace in hollow] == pytest.approx([0.01]), "three samples only"
    assert figure.layout.shapes[0].y0 == 0, "the full cache's own value"
    missed = figures.against(cells, found, counts, MEASURES["fmm_acc"], look, "bytes")
    assert len(missed.data) == 2, "what wasn't measured has no mark"


def test_layers_have_dashes_where_nothing_was_measured(known):
    cells, _, _, layers, _ = known
    figure = figures.by_layer(cells, layers, MEASURES["fmm_acc"])
    (heat,) = figure.data
    assert len(heat.z) == 3
    assert [note.text for note in figure.layout.annotations].count("–") == 3
    assert "none by layer" in figures.by_layer(cells, layers, MEASURES["kl"]).layout.annotations[0].text


def test_the_table_counts_samples_and_says_why_one_is_missing(known):
    cells, found, counts, _, _ = known
    table = diagnostic_table(cells, found, counts).set_index("policy")
    name = MEASURES["fmm_acc"].name
    short = table.loc["hierarchy hbm=0.5 evict=0.03"]
    assert (short["diagnosed"], short[f"n of {name}"]) == (3, 0)
    assert "33 decode steps" in short["missing"]
    assert table.loc["streaming budget=0.5", "missing"] == "not diagnosed"
    full = table.loc["h2o budget=0.5"]
    assert full[MEASURES["lir"].name] == pytest.approx(0.75)
    assert full["parts from full"] == 1.0


def test_scorers_are_ranked_and_the_interval_stays(url):
    (check,) = occlusion_checks(open_engine(url, read_only=True), "sweep-1")
    rows = figures.scorer_means(check)
    assert [row[0] for row in rows] == ["attention", "random", "still"]
    assert rows[0][1] == pytest.approx(0.3)
    assert rows[0][2] <= rows[0][1] <= rows[0][3]
    assert rows == figures.scorer_means(check), "the same at every look"
    figure = figures.scorers(check)
    assert [trace.x[0] for trace in figure.data] == pytest.approx([0.0, 0.3])
    assert figure.data[0].marker.symbol.endswith("-open"), "its interval holds zero"
    assert "tells no token apart" in figure.layout.annotations[0].text
    assert "attention +0.30" in figures.scorers_in_words(check)


# The page itself


def run_page():  # its source is run as the app, so it imports for itself
    from dashboard.diagnostics_page import page

    page()


@pytest.fixture
def visit(monkeypatch):
    def open_page(address, **query):
        monkeypatch.setenv("TIERCACHE_DB", address)
        app = AppTest.from_function(run_page, default_timeout=90)
        for key, value in query.items():
            app.query_params[key] = value
        app.run()
        assert not app.exception, [error.message for error in app.exception]
        return app

    return open_page


def words(app):
    parts = [*app.text, *app.info, *app.code, *app.caption, *app.subheader]
    return "\n".join(str(part.value) for part in parts)


def test_the_page_shows_the_chosen_measure_and_its_definition(visit, url):
    app = visit(url, measure="lir")
    assert "latent importance reactivation" in words(app).lower()
    assert app.query_params["measure"] == "lir"
    assert "3 chains, windows of 32 tokens" in words(app)
    assert "the <b>answer</b>" in words(app), "as text"
    assert "tiercache occlusion sweep-1 --n 3 --window 32 --stride 16" in words(app)


def test_what_was_not_measured_names_the_command(visit, database):
    app = visit(database("fill"))
    assert "diagnostics: true" in words(app)
    assert "tiercache occlusion sweep-1" in words(app)


@pytest.mark.parametrize("kind", ["sweep_without_samples", "sweep_without_cells", "two_protocols", "grid"])
def test_odd_databases_say_something(visit, database, kind):
    assert words(visit(database(kind), measure="?", model="?", sweep="?", protocol="?"))


@pytest.mark.parametrize("kind", ["missing", "only_tables"])
def test_empty_databases_name_the_first_command(visit, database, kind):
    assert "tiercache run sweeps/demo.yaml" in words(visit(database(kind)))
