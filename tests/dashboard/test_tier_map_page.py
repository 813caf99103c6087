"""The tier map on the Samples page: it is found, it follows the URL, and where there is none the option is named."""

import pytest
from streamlit.testing.v1 import AppTest

from dashboard.tier_map_view import NO_MAP
from db.connection import open_engine
from db.queries import get_tier_map, list_samples
from db.writer import Writer


@pytest.fixture(scope="module")
def mapped(made_up, made_maps, tmp_path_factory):
    """A database in which two policies have a map of one problem, and a third none; its URL and cells."""
    url = f"sqlite:///{tmp_path_factory.mktemp('maps') / 'maps.db'}"
    made_up.fill(url, 8)
    engine = open_engine(url, read_only=True)
    cells = [made_up.cell(place, 8).fingerprint for place in (0, 1, 2)]
    problem = list_samples(engine, cells[0])[3].problem_id
    engine.dispose()
    with Writer.open(url) as writer:
        for place, fingerprint in enumerate(cells[:2]):
            tiers = made_maps.make(seed=place, texts=made_maps.HOSTILE, looks=6 + place)
            tiers.ids[10:] += place
            writer.record_tier_maps([made_maps.row(tiers, fingerprint, problem)])
    return url, cells, problem


def run_page() -> None:  # its source is run as the app, so it imports for itself
    from dashboard import samples_page

    samples_page.page()


@pytest.fixture
def visit(mapped, monkeypatch):
    def open_page(**query):
        monkeypatch.setenv("TIERCACHE_DB", mapped[0])
        app = AppTest.from_function(run_page, default_timeout=30)
        for key, value in query.items():
            app.query_params[key] = value
        app.run()
        assert not app.exception, [error.message for error in app.exception]
        return app

    return open_page


def words(app):
    return "\n".join(str(part.value) for part in [*app.text, *app.caption])


def test_a_sample_with_a_map_is_shown_first(visit, mapped):
    _, cells, problem = mapped
    app = visit(cell=cells[0])
    assert app.query_params["sample"] == f"0:{problem}"
    assert "Where each token lay" in words(app)
    assert "the full cache would hold 100.0 KiB" in words(app)
    assert app.select_slider[0].value == 20
    assert [app.query_params[name] for name in ("look", "layer")] == ["20", "all"]
    assert (app.dataframe[0].value["tier map"] == "yes").sum() == 1


def test_look_and_layer_come_from_the_url(visit, mapped):
    _, cells, problem = mapped
    app = visit(cell=cells[0], sample=f"0:{problem}", look="11", layer="1")
    assert app.select_slider[0].value == 8, "the last look before it"
    assert next(box for box in app.selectbox if box.label == "Layers").value == "1"
    app.select_slider[0].set_value(12).run()
    assert app.query_params["look"] == "12"
    for odd in ("", "-1", "x", "9" * 30):
        assert visit(cell=cells[0], sample=f"0:{problem}", look=odd, layer="77").select_slider[0].value == 20


def test_two_maps_side_by_side(visit, mapped):
    _, cells, problem = mapped
    app = visit(cell=cells[0], sample=f"0:{problem}", beside=cells[1])
    assert "The texts part at output token 6" in words(app)
    assert app.select_slider[0].value == 24, "of both maps' steps the last"
    one = visit(cell=cells[0], sample=f"0:{problem}", beside=cells[2])
    assert "has no tier map." in words(one)


def test_a_long_text_is_shown_in_parts(visit, mapped, monkeypatch):
    _, cells, problem = mapped
    monkeypatch.setattr("dashboard.tier_figures.PART", 10)
    app = visit(cell=cells[0], sample=f"0:{problem}")
    box = next(box for box in app.selectbox if box.label == "Tokens")
    assert (box.value, box.options) == ("1", ["1 to 10 of 26", "11 to 20 of 26", "21 to 26 of 26"])
    box.set_value("21").run()
    assert app.query_params["token"] == "21"
    both = visit(cell=cells[0], sample=f"0:{problem}", beside=cells[1])
    assert next(box for box in both.selectbox if box.label == "Tokens").value == "11", "where the texts part"


def test_without_a_map_the_option_is_named(visit, mapped):
    _, cells, problem = mapped
    app = visit(cell=cells[2], sample=f"0:{problem}")
    assert NO_MAP in words(app)
    assert "tier_maps: 3" in NO_MAP
    assert "tiercache run" in NO_MAP
    assert len(app.select_slider) == 0
    assert "tier map" not in app.dataframe[0].value


def test_the_stored_map_is_the_drawn_one(mapped, made_maps):
    url, cells, problem = mapped
    engine = open_engine(url, read_only=True)
    found = get_tier_map(engine, cells[0], problem, 0)
    engine.dispose()
    assert found.texts[0] == made_maps.HOSTILE[0]
    assert (found.overall == made_maps.make(texts=made_maps.HOSTILE).overall).all()
