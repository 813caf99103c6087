"""Each page over each odd database: it says something useful and never throws."""

import pytest
from streamlit.testing.v1 import AppTest

from dashboard import pages
from dashboard.launch import APP

EMPTY = ["missing", "zero_bytes", "only_tables"]
UNREADABLE = ["no_database", "bad_url"]
ODD = [
    "sweep_without_samples",
    "sweep_without_cells",
    "one_policy",
    "nothing_but_nulls",
    "two_protocols",
    "fill",
    "grid",
    "hostile",
]
PAGES = [page.path for page in pages.PAGES if page.needs_database]


def run_page(name: str) -> None:  # its source is run as the app, so it imports for itself
    from dashboard.pages import PAGES

    next(page for page in PAGES if page.path == name).show()


@pytest.fixture
def visit(database, monkeypatch):
    """Return a function that opens a page over a kind of database and has seen no exception."""

    def open_page(kind, page, **query):
        monkeypatch.setenv("TIERCACHE_DB", database(kind))
        app = AppTest.from_function(run_page, default_timeout=30, kwargs={"name": page})
        for key, value in query.items():
            app.query_params[key] = value
        return checked(app.run())

    return open_page


def checked(app):
    assert not app.exception, [error.message for error in app.exception]
    return app


def words(app):
    parts = [*app.text, *app.info, *app.warning, *app.code, *app.caption, *app.title, *app.subheader]
    return "\n".join(str(part.value) for part in parts)


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("kind", EMPTY)
def test_empty_databases_name_the_command_to_run(visit, kind, page):
    assert "tiercache run sweeps/demo.yaml" in words(visit(kind, page))


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("kind", UNREADABLE)
def test_unreadable_databases_are_explained(visit, kind, page):
    text = words(visit(kind, page))
    assert "can't be read" in text
    assert "hunter2" not in text


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("kind", ODD)
def test_odd_databases(visit, kind, page):
    visit(kind, page)


@pytest.mark.parametrize("page", PAGES)
def test_nonsense_in_the_url_is_harmless(visit, page):
    query = dict.fromkeys(
        (
            "view",
            "baseline",
            "colour",
            "settings",
            "sweep",
            "model",
            "benchmark",
            "axis",
            "cell",
            "outcome",
            "sample",
            "beside",
            "protocol",
        ),
        "?",
    )
    visit("fill", page, **query, search="%_'\\")


def test_compare_keeps_protocols_apart(visit):
    app = visit("two_protocols", "compare", sweep="all sweeps", protocol="f00dfeedbeef")
    assert "2 different protocols" in words(app)
    assert next(box for box in app.selectbox if box.label == "Protocol").value == "f00dfeedbeef"
    (table,) = app.dataframe
    assert set(table.value["protocol"]) == {"1a2b3c4d5e6f", "f00dfeedbeef"}
    assert len(table.value) == 12
    assert "2 different protocols" not in words(visit("two_protocols", "compare", sweep="sweep-1"))


def test_compare_shows_differences_to_the_full_cache(visit):
    app = visit("fill", "compare")
    assert "shared their node" in words(app)
    (table,) = app.dataframe
    frame = table.value.set_index("policy")
    assert frame.loc["full", "pairs"] != frame.loc["full", "pairs"]  # the baseline has no difference to itself
    assert frame.loc["h2o budget=0.5", "vs full"] < 0
    assert frame.loc["h2o budget=0.5", "pairs"] == 40


VIEWS = ["overview", "budget", "paired", "hierarchy"]


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("kind", ODD)
def test_every_view_of_odd_databases(visit, kind, view):
    visit(kind, "compare", view=view)


def test_views_are_in_the_url(visit):
    assert "No grid" in words(visit("fill", "compare", view="hierarchy"))
    assert "Cells: hierarchy recent=16" in words(visit("grid", "compare", view="hierarchy"))
    assert "Where each policy breaks" in words(visit("fill", "compare", view="budget"))
    assert visit("fill", "compare").query_params["view"] == "overview"


def test_the_baseline_is_pinned_in_the_url(visit, made_up):
    def baseline(app):
        return next(box for box in app.selectbox if box.label == "Baseline").value

    full, other = (made_up.cell(place, 40).fingerprint for place in (0, 4))
    assert baseline(visit("fill", "compare", view="paired")) == full
    app = visit("fill", "compare", view="paired", baseline=other)
    assert baseline(app) == other
    assert app.query_params["baseline"] == other


def test_choices_go_to_the_url_and_come_from_it(visit):
    app = visit("fill", "compare", axis="share")
    assert next(box for box in app.selectbox if box.label == "Memory axis").value == "share"
    assert app.query_params["sweep"] == "sweep-1"
    next(box for box in app.selectbox if box.label == "Memory axis").select("bytes")
    assert checked(app.run()).query_params["axis"] == "bytes"


def test_sweep_page_counts(visit):
    app = visit("fill", "sweeps")
    shown = {metric.label: metric.value for metric in app.metric}
    assert (
        shown.items()
        >= {
            "samples done": "339 of 400",
            "failed": "1",
            "cells done": "7",
            "cells running": "1",
            "cells waiting": "1",
        }.items()
    )


def test_samples_filters_and_links(visit, made_up):
    cell = made_up.cell(0, 40).fingerprint
    app = visit("fill", "samples", cell=cell, outcome="correct", search="Problem-0", sample="0:problem-004")
    (listed, facts) = app.dataframe
    assert set(listed.value["outcome"]) == {"correct"}
    assert "Problem problem-004, repeat 0" in words(app)
    assert dict(zip(facts.value["fact"], facts.value["value"], strict=True))["reference"] == "6"
    assert "No sample matches" in words(visit("fill", "samples", search="no such text"))


def test_what_only_the_full_cache_gets_right(visit, made_up):
    full, cell = (made_up.cell(place, 40).fingerprint for place in (0, 4))
    app = visit("fill", "samples", cell=cell, outcome="lost")
    listed = app.dataframe[0].value
    assert len(listed) > 0
    assert "correct" not in set(listed["outcome"])
    beside = next(box for box in app.selectbox if box.label.startswith("Compare with"))
    assert beside.value == full
    show = next(box for box in app.selectbox if box.label == "Show")
    assert show.options[0] == "wrong here, right with the full cache"
    itself = visit("fill", "samples", cell=full, outcome="lost")
    assert next(box for box in itself.selectbox if box.label == "Show").value == "any outcome"


def test_hostile_output_is_only_ever_code(visit, made_up):
    app = visit("fill", "samples", cell=made_up.cell(0, 40).fingerprint, beside=made_up.cell(4, 40).fingerprint)
    assert sum("<script>" in block.value for block in app.code) >= 2
    assert not any("<script>" in block.value for block in app.markdown)
    assert "The outputs part after" in words(app)


def test_two_sweeps_of_one_name_can_be_told_apart(visit):
    box = next(box for box in visit("two_protocols", "sweeps").selectbox if box.label == "Sweep")
    assert len(set(box.options)) == 2


def test_the_app_itself_starts(database, monkeypatch):
    monkeypatch.setenv("TIERCACHE_DB", database("fill"))
    app = checked(AppTest.from_file(str(APP), default_timeout=30).run())
    assert [title.value for title in app.title] == ["Sweeps"]
