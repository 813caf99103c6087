"""The page Memory & speed over odd databases and with tier maps."""

import numpy as np
import plotly.graph_objects as go
import pytest
from streamlit.testing.v1 import AppTest

from dashboard import tier_bytes
from dashboard.pages import PAGES
from db.queries import TierMap
from db.rows import TierMapRow
from db.tier_codec import Looks, pack, unpack
from db.tier_maps import SERIES
from db.writer import Writer

PARTS = ["bytes", "time", "transfers", "latency", "roofline"]


def packed(looks=5, prompt=3):
    """A made-up map of a sequence that grows by one token a step; half of it is in DDR."""
    steps = np.arange(looks)
    tokens = prompt + looks
    tiers = np.zeros((looks, 1, tokens), np.uint8)
    found = Looks(
        steps=steps, seen=prompt + steps, tiers=tiers, overall=tiers[:, 0], importance=None,
        held=np.ones((looks, tokens), np.float32),
    )  # fmt: skip
    full = (prompt + steps) * 1024
    series = {**dict.fromkeys(SERIES, np.zeros(looks, np.int64)), "hbm": full // 2, "ddr": full // 2, "full": full}
    return pack(found, series, ["t"] * tokens, np.arange(tokens))[0]


@pytest.fixture(scope="module")
def mapped(made_up, tmp_path_factory):
    """A database in which two cells have a tier map of their first problem."""
    url = f"sqlite:///{tmp_path_factory.mktemp('mapped') / 'mapped.db'}"
    made_up.fill(url, 4)
    with Writer.open(url) as writer:
        for place in (0, 1):
            row = TierMapRow(
                fingerprint=made_up.cell(place, 4).fingerprint, problem_id="problem-000", repeat=0, steps=4,
                prompt_tokens=3, tokens=8, looks=5, layers=1, kv_heads=1, blob=packed(), no_importance="none",
            )  # fmt: skip
            writer.record_tier_maps([row])
    return url


def test_panels_over_time_share_their_scale():
    facts = {"fingerprint": "f", "problem_id": "1", "repeat": 0, "prompt_tokens": 3, "layers": 1, "kv_heads": 1}
    found = TierMap(**facts, no_importance=None, **unpack(packed()))
    figure = tier_bytes.over_time([("one <b>", found), ("two", found), ("three", found)])
    go.Figure(figure.to_dict())
    areas = [trace for trace in figure.data if trace.stackgroup]
    assert len(areas) == 9
    assert len({trace.stackgroup for trace in areas}) == 3  # a panel's tiers are stacked on each other alone
    assert {figure.layout[name].matches or "y3" for name in ("yaxis", "yaxis2", "yaxis3")} == {"y3"}
    assert "yaxis4" not in figure.layout  # three panels, not four
    whole = next(trace for trace in figure.data if trace.name == "full cache")
    assert list(whole.y) == pytest.approx([3, 4, 5, 6, 7])  # KiB
    assert "one &lt;b&gt;" in {note.text for note in figure.layout.annotations}
    assert "No tier map" in tier_bytes.over_time([]).to_json()
    assert "3.5 KiB at the end" in tier_bytes.time_in_words([("one", found)])


def run_page() -> None:  # its source is run as the app, so it imports for itself
    from dashboard import speed_page

    speed_page.page()


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


def words(app):
    parts = [*app.text, *app.info, *app.warning, *app.code, *app.caption]
    return "\n".join(str(part.value) for part in parts)


@pytest.mark.parametrize("kind", ["missing", "only_tables", "no_database"])
def test_nothing_to_show_is_explained(visit, kind):
    text = words(visit(kind))
    assert "tiercache run sweeps/demo.yaml" in text or "can't be read" in text


@pytest.mark.parametrize(
    "kind", ["sweep_without_samples", "sweep_without_cells", "one_policy", "nothing_but_nulls", "two_protocols"]
)
def test_odd_databases(visit, kind):
    app = visit(kind)
    for part in PARTS[1:]:
        app.query_params["part"] = part
        app.run()
        assert not app.exception


@pytest.mark.parametrize("part", PARTS)
def test_every_part_says_what_it_shows(visit, part):
    app = visit("fill", part=part)
    assert app.query_params["part"] == part
    text = words(app)
    expected = {
        "bytes": "counted by the ledger",
        "time": "tier_maps: 3",
        "transfers": "Policies that moved nothing, not in the chart: 9",
        "latency": "Hollow: another engine",
        "roofline": "no shard has ended: 1",
    }[part]
    assert expected in text
    (table,) = app.dataframe
    assert len(table.value) == 10


def test_choices_are_in_the_url(visit):
    app = visit("fill", part="bytes", bytes="peak")
    assert "since the peak of quantised bytes isn't recorded: 1 policies" in words(app)
    app = visit("fill", part="latency", time="tpot")
    assert next(box for box in app.selectbox if box.label == "Time").value == "tpot"
    visit("fill", **dict.fromkeys(("sweep", "model", "benchmark", "part", "bytes", "time", "mapped", "mapped by"), "?"))


def test_protocols_are_kept_apart(visit):
    app = visit("two_protocols", sweep="all sweeps", protocol="f00dfeedbeef")
    assert "2 different protocols" in words(app)
    (table,) = app.dataframe
    assert len(table.value) == 2


def test_maps_over_time(visit, mapped, made_up):
    app = visit(mapped, part="time")
    (box,) = app.multiselect
    assert box.value == [made_up.cell(1, 4).fingerprint]  # at first without the full cache
    assert "the full cache would hold of the same tokens" in words(app)
    box.set_value([])
    assert not app.run().exception


def test_pages_list_has_the_page():
    assert next(page for page in PAGES if page.path == "speed").title == "Memory & speed"
