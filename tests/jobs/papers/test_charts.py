"""Charts are whole SVG whatever the numbers and the names; the front is what nothing beats."""

from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.papers.charts import Pair, Panel, Point, Series, dumbbells, lines, scatter
from jobs.papers.figures import front
from jobs.papers.svg import MARKS, Look, look, mark

SVG = "{http://www.w3.org/2000/svg}"
EVIL = '"><script>alert(1)</script> & \x1b[31m \u202e'
percent = st.floats(0, 100, allow_nan=False)


class Cell:
    def __init__(self, name: int, accuracy: float, policy: str = "h2o") -> None:
        self.name, self.accuracy, self.policy, self.policy_name = name, accuracy, policy, policy


def texts(svg: str) -> list[str]:
    return [str(each.text) for each in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def point(x: float, y: float) -> Point:
    return Point(x, y, max(0.0, y - 3), min(100.0, y + 3))


@given(st.lists(st.tuples(percent, percent), min_size=1, max_size=12))
def test_any_numbers_give_a_whole_file(values: list[tuple[float, float]]) -> None:
    points = tuple(point(x, y) for x, y in values)
    panel = Panel("t", "x", (Series("a", points), Series("b", points[:1])), points[:2])
    for svg in (lines("t", (panel, panel)), scatter("t", (panel, panel))):
        root = ElementTree.fromstring(svg)
        width, height = float(root.attrib["width"]), float(root.attrib["height"])
        assert not {"nan", "inf"} & set(svg.replace('"', " ").split())
        for circle in root.iter(f"{SVG}circle"):
            assert 0 <= float(circle.attrib["cx"]) <= width
            assert 0 <= float(circle.attrib["cy"]) <= height
    assert lines("t", (panel,)) == lines("t", (panel,))


def test_names_stay_text() -> None:
    panel = Panel(EVIL, EVIL, (Series(EVIL, (point(1, 2), point(3, 4))),))
    for svg in (lines(EVIL, (panel,)), scatter(EVIL, (panel,)), dumbbells(EVIL, (Pair(EVIL, -1.0, point(-2, 0)),))):
        root = ElementTree.fromstring(svg)
        assert not list(root.iter(f"{SVG}script"))
        assert any("<script>" in text for text in texts(svg))
        assert "\u202e" not in svg


def test_a_dumbbell_shows_both_values_and_its_interval() -> None:
    svg = dumbbells("t", (Pair("p", -30.0, Point(-10.0, 0.0, -14.0, -6.0)), Pair("full of it", 2.0, point(0, 0))))
    said = texts(svg)
    assert {"p", "full of it", "published", "ours, with 95% interval", "0", "-20"} <= set(said)
    root = ElementTree.fromstring(svg)
    hollow = [each for each in root.iter(f"{SVG}polygon") if each.attrib["fill"] == "#ffffff"]
    assert len(hollow) == 3, "two policies and the legend"


def test_points_of_the_front_are_numbered() -> None:
    points = tuple(point(10.0 * i, 10.0 * i) for i in range(1, 5))
    svg = scatter("t", (Panel("t", "x", (Series("a", points),), points[1:]),))
    bold = [each.text for each in ElementTree.fromstring(svg).iter(f"{SVG}text") if "font-weight" in each.attrib]
    assert bold[-3:] == ["1", "2", "3"]


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 10)), min_size=1, max_size=20))
def test_nothing_beats_the_front_and_it_beats_all_else(values: list[tuple[int, int]]) -> None:
    cells: Any = [(Cell(place, accuracy / 10), float(cost)) for place, (cost, accuracy) in enumerate(values)]
    best = {cell.name for cell in front(cells)}
    for cell, cost in cells:
        beaten = any(other.accuracy >= cell.accuracy and price <= cost for other, price in cells if other.name in best)
        assert beaten, "each is at or behind a point of the front"
        if cell.name in best:
            assert not any(other.accuracy > cell.accuracy and price <= cost for other, price in cells)


def test_among_equals_the_front_names_the_full_cache() -> None:
    equals: Any = [(Cell(0, 0.9), 100.0), (Cell(1, 0.9, "full"), 100.0)]
    for cells in (equals, equals[::-1]):
        assert [cell.policy for cell in front(cells)] == ["full"]


@pytest.mark.parametrize("shape", MARKS)
def test_every_mark_is_drawn_round_its_place(shape: str) -> None:
    element = ElementTree.fromstring(mark(50.0, 60.0, Look("#000000", shape)))
    if shape == "circle":
        assert (element.attrib["cx"], element.attrib["cy"]) == ("50.0", "60.0")
        return
    places = [tuple(map(float, place.split(","))) for place in element.attrib["points"].split()]
    assert min(x for x, _ in places) < 50 < max(x for x, _ in places)
    assert min(y for _, y in places) < 60 < max(y for _, y in places)


def test_twenty_four_looks_are_all_different() -> None:
    assert len({look(place) for place in range(24)}) == 24
