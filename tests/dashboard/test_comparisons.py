"""Budget curves, grids, paired differences and the Pareto front, without Streamlit."""

import dataclasses

import plotly.graph_objects as go
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard import curves, forest, fronts, grids
from dashboard.colours import looks
from db import queries
from db.connection import open_engine
from db.queries import PairedDelta

numbers = st.none() | st.floats(0, 5) | st.integers(0, 4).map(float) | st.just(float("nan"))


@given(st.lists(st.tuples(numbers, numbers), max_size=12))
def test_the_front_is_of_the_points_that_no_other_beats(points):
    def known(point):
        return all(part is not None and part == part for part in point)

    def beaten(point):
        return any(known(o) and o != point and o[0] <= point[0] and o[1] >= point[1] for o in points)

    assert fronts.pareto(points) == [known(point) and not beaten(point) for point in points]


def made(cells, name, accuracy, share, label, **changes):
    """A cell with these numbers; its interval is 5 points wide on either side."""
    cell = next(cell for cell in cells if cell.policy_name == name)
    return dataclasses.replace(
        cell,
        fingerprint=label,
        policy=label,
        accuracy=accuracy,
        accuracy_low=accuracy - 0.05,
        accuracy_high=accuracy + 0.05,
        hbm_bytes=share * cell.full_bytes,
        packed_bytes=0.0,
        **changes,
    )


@pytest.fixture
def falling(cells):
    """One family over four budgets: it holds at two, and then falls off."""
    at = {0.9: 0.9, 0.7: 0.88, 0.5: 0.3, 0.3: 0.1}
    return [made(cells, "h2o", accuracy, share, f"h2o budget=bytes:{share} every=16") for share, accuracy in at.items()]


def look_of(cells):
    return looks((cell.policy, cell.policy_name) for cell in cells)


def test_a_line_turns_one_knob_and_keeps_the_other_settings(cells, falling):
    (line,) = curves.lines(falling)
    assert (line.name, line.knob) == ("h2o every=16", "budget")
    assert [cell.resident_share for cell in line.points] == pytest.approx([0.3, 0.5, 0.7, 0.9])
    names = {line.name: (line.knob, len(line.points)) for line in curves.lines(cells)}
    assert names["h2o"] == ("budget", 2)
    assert names["h2o pin_prompt"] == (None, 1)
    assert names["hierarchy"] == ("hbm", 2)
    assert names["hierarchy packed=0.3"] == (None, 1)
    assert not any("random" in name for name in names)  # no sample yet


def test_two_knobs_are_parted_into_lines_of_one(cells):
    both = [
        made(cells, "hierarchy", 0.5, hbm, f"hierarchy hbm={hbm} evict={evict}")
        for hbm in (0.2, 0.4, 0.6)
        for evict in (0, 0.03)
    ]
    found = curves.lines(both)
    assert [(line.name, line.knob, len(line.points)) for line in found] == [
        ("hierarchy evict=0", "hbm", 3),
        ("hierarchy evict=0.03", "hbm", 3),
    ]


def test_no_line_joins_protocols(falling):
    mixed = [*falling[:2], *(dataclasses.replace(cell, protocol="other") for cell in falling[2:])]
    assert [len(line.points) for line in curves.lines(mixed)] == [2, 2]
    with pytest.raises(ValueError, match="can't share a chart"):
        curves.budget_curves(mixed, look_of(mixed))


def test_the_cliff_is_the_deepest_fall_and_must_be_clear(falling):
    (line,) = curves.lines(falling)
    upper, lower = curves.cliff(line)
    assert (upper.accuracy, lower.accuracy) == (0.88, 0.3)
    flat = dataclasses.replace(line, points=line.points[2:])  # 0.88 and 0.9: within their intervals
    assert curves.cliff(flat) is None


def delta(cell, low, high):
    middle = (low + high) / 2
    return PairedDelta(fingerprint=cell.fingerprint, pairs=40, gained=1, lost=2, delta=middle, low=low, high=high)


def test_the_table_says_where_a_policy_holds_and_breaks(cells, falling):
    deltas = {c.fingerprint: delta(c, *((-0.1, 0.1) if c.accuracy > 0.8 else (-0.8, -0.5))) for c in falling}
    nowhere = made(cells, "streaming", 0.1, 0.05, "streaming budget=0.05")
    deltas[nowhere.fingerprint] = delta(nowhere, -0.9, -0.7)
    table = curves.cliff_table([*falling, nowhere], deltas)
    assert list(table["policy"]) == ["h2o every=16", "streaming"]  # what holds nowhere never ranks first
    first = table.iloc[0]
    assert (first["holds down to"], first["setting there"]) == (pytest.approx(0.7), "budget=bytes:0.7")
    assert (first["cliff from"], first["cliff to"]) == (pytest.approx(0.7), pytest.approx(0.5))
    assert first["accuracy lost there"] == pytest.approx(0.58)
    assert curves.cliff_table([], {}).empty


def test_curves_have_intervals_a_baseline_and_one_colour_a_policy(cells, falling):
    shown = [next(cell for cell in cells if cell.policy == "full"), *falling]
    look = look_of(shown)
    figure = curves.budget_curves(shown, look)
    line = next(trace for trace in figure.data if trace.name == "h2o every=16")
    assert list(line.error_y.array) == pytest.approx([0.05] * 4)
    assert list(line.marker.color) == [look[cell.policy].colour for cell in curves.lines(falling)[0].points]
    assert any(shape.type == "line" and shape.line.dash == "dash" for shape in figure.layout.shapes)
    assert any("full cache" in note.text for note in figure.layout.annotations)
    faded = curves.budget_curves(shown, look, in_colour=())
    assert [trace.name for trace in faded.data] == ["others"]


def test_at_first_the_best_on_few_bytes_are_in_colour(cells):
    many = [made(cells, "h2o", i / 20, 0.3, f"p{i}", policy_name=f"p{i}") for i in range(12)]
    many.append(made(cells, "h2o", 1.0, 0.9, "keeps much", policy_name="keeps much"))
    assert curves.first_in_colour(many) == [f"p{i}" for i in range(11, 3, -1)]


@pytest.fixture(scope="module")
def gridded(database):
    engine = open_engine(database("grid"), read_only=True)
    found = queries.cell_summaries(engine, "sweep-1")
    configs = {key: config for key, (_, config) in queries.cell_configs(engine, "sweep-1").items()}
    engine.dispose()
    return found, configs


def test_a_grid_has_a_place_for_each_pair_of_ratios(gridded):
    (name, grid), *more = grids.grids(*gridded).items()
    assert (name, len(grid), more) == ("hierarchy recent=16", 8, [])
    figure = grids.hbm_evict_map(grid)
    (heat,) = figure.data
    assert (list(heat.y), list(heat.x)) == (["0.25", "0.5", "1"], ["0", "0.03", "0.1"])
    assert heat.z[0][1] == grid[0.25, 0.03].accuracy
    assert heat.z[2][1] is None  # no sample yet
    assert heat.z[2][2] is None  # not asked for
    texts = {(note.y, note.x): note.text for note in figure.layout.annotations}
    assert texts[2, 2] == "–"
    assert texts[2, 1] == "–<br>no sample"
    assert texts[0, 1].endswith("n=8")


def test_no_grid_without_two_values_of_both(gridded, cells):
    found, configs = gridded
    row = [cell for cell in found if (grids.ratios(configs[cell.fingerprint]) or (0,))[0] == 0.5]
    assert grids.grids(row, configs) == {}
    assert grids.grids(cells, {}) == {}
    with pytest.raises(ValueError, match="can't share a chart"):
        grids.grids([*found, dataclasses.replace(found[0], protocol="other")], configs)


@pytest.mark.parametrize(
    "config", [{}, {"policy": None}, {"policy": {"placement": 3}}, {"policy": {"placement": {"hbm": "x"}}}]
)
def test_configurations_without_ratios(config):
    assert grids.ratios(config) is None


def test_differences_are_sorted_and_what_is_missing_comes_last(cells, look):
    full, best, worst, unpaired, *_ = cells
    deltas = {best.fingerprint: delta(best, -0.02, 0.08), worst.fingerprint: delta(worst, -0.3, -0.1)}
    chosen = [unpaired, worst, full, best]
    assert [cell for cell, _ in forest.ranked([unpaired, worst, best], deltas)] == [best, worst, unpaired]
    figure = forest.paired_differences(chosen, deltas, look, full)
    low, high = (trace for trace in figure.data)  # plotly's first row is the lowest
    assert (low.y[0], high.y[0]) == (1, 2)
    assert high.x[0] - high.error_x.arrayminus[0] == pytest.approx(-0.02)
    assert high.marker.symbol.endswith("-open")  # its interval holds zero
    assert not low.marker.symbol.endswith("-open")
    assert low.marker.color == look[worst.policy].colour
    assert "1 gained" in low.hovertemplate
    assert "2 lost" in low.hovertemplate
    (dash,) = figure.layout.annotations
    assert (dash.y, dash.text) == (0, "– no sample in common")


@pytest.mark.parametrize("some", [0, 1, 10])
def test_every_figure_is_labelled_and_stands_emptiness(some, cells, look):
    shown = cells[:some]
    built = [
        curves.budget_curves(shown, look),
        forest.paired_differences(shown, {}, look, cells[0]),
        grids.hbm_evict_map({}),
    ]
    for figure in built:
        assert figure.layout.title.text
        assert figure.layout.xaxis.title.text
        assert figure.layout.yaxis.title.text
        go.Figure(figure.to_dict())
    for words in (curves.in_words(shown), forest.in_words(shown, {}, cells[0]), grids.in_words({})):
        assert words.startswith("Chart: ")


def test_hostile_labels_stay_text(cells, look):
    odd = made(cells, "h2o", 0.5, 0.5, "<a href='x'>%{y}</a> budget=1")
    pair = {odd.fingerprint: delta(odd, -0.1, 0.1)}
    for figure in (
        curves.budget_curves([odd], look_of([odd])),
        curves.budget_curves([odd], look_of([odd]), in_colour=()),
        forest.paired_differences([odd], pair, look_of([odd]), cells[0]),
        grids.hbm_evict_map({(0.5, 0.0): odd}),
    ):
        assert "<a" not in figure.to_json().replace("\\u003c", "<")
        assert not any("%{y}" in str(trace.hovertemplate) for trace in figure.data)
