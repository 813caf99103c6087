"""Marks drawn singly and together say the same."""

import dataclasses

import plotly.graph_objects as go
import pytest

from dashboard import figures, forest
from dashboard.colours import Look, looks
from dashboard.limits import limited
from dashboard.marks import Mark, add_marks
from db.queries import PairedDelta


def mark(place, preset="h2o", **more):
    look = Look(f"#00{place:02x}00", "square" if preset == "h2o" else "circle")
    given = {"x": place, "y": place / 10, "above": 0.1, "below": 0.2, "look": look, "preset": preset}
    return Mark(**given, name=f"name {place}", told=f"told {place}", **more)


MARKS = [mark(0), mark(1, hollow=True), mark(2, "rkv"), mark(3, ringed=True), mark(4, "rkv", hollow=True)]


def points(figure):
    """What is drawn where, whichever trace it belongs to."""
    found = []
    for trace in figure.to_dict()["data"]:
        one = trace["marker"]
        for place, x in enumerate(trace["x"]):
            at = {
                name: one[name] if isinstance(one[name], str | int) else one[name][place]
                for name in ("color", "symbol", "size")
            }
            width = one["line"]["width"]
            told = trace["hovertemplate"]
            found.append(
                (
                    x,
                    trace["y"][place],
                    trace["error_y"]["array"][place],
                    trace["error_y"]["arrayminus"][place],
                    *at.values(),
                    width[place] if isinstance(width, tuple | list) else width,
                    told if isinstance(told, str) else told[place],
                )
            )
    return sorted(found)


def test_together_they_are_where_and_what_they_are_singly():
    singly, together = go.Figure(), go.Figure()
    add_marks(singly, MARKS, False)
    add_marks(together, MARKS, True)
    assert points(singly) == points(together)
    assert [trace.name for trace in singly.data] == [f"name {place}" for place in range(5)]
    assert [trace.name for trace in together.data] == ["h2o", "rkv"]
    go.Figure(together.to_dict())


def test_intervals_along_the_other_axis_and_settings_of_ones_own():
    figure = go.Figure()
    add_marks(figure, MARKS, True, interval="x", size=10)
    assert figure.data[0].error_x.array == (0.1, 0.1, 0.1)
    assert figure.data[0].error_y.array is None
    assert figure.data[0].marker.size == 10


@pytest.mark.parametrize("count", [5, 100])
def test_a_chart_of_many_policies_has_few_traces(cells, count):
    presets = ("h2o", "rkv", "streaming")
    many = [
        dataclasses.replace(
            cells[1], fingerprint=f"f{i}", policy=f"{presets[i % 3]} budget={i}", policy_name=presets[i % 3]
        )
        for i in range(count)
    ]
    look = looks((cell.policy, cell.policy_name) for cell in many)
    deltas = {
        cell.fingerprint: PairedDelta(
            fingerprint=cell.fingerprint, pairs=9, gained=1, lost=i % 4, delta=-0.01 * i, low=-0.01 * i - 0.1, high=0.05
        )
        for i, cell in enumerate(many)
    }
    for figure in (
        figures.accuracy_against_throughput(many, look),
        forest.paired_differences(many, deltas, look, cells[0]),
    ):
        drawn = [trace for trace in figure.data if trace.mode == "markers"]
        assert sum(len(trace.x) for trace in drawn) == count
        assert len(drawn) == (count if count == 5 else 3)


def test_a_chart_keeps_the_full_cache_and_the_most_accurate_and_says_so(cells):
    full, other = cells[0], cells[1]
    many = [
        *(
            dataclasses.replace(other, fingerprint=f"f{i}", policy=f"h2o budget={i}", accuracy=i / 100)
            for i in range(9)
        ),
        dataclasses.replace(other, fingerprint="no", policy="h2o none", accuracy=None),
        dataclasses.replace(full, accuracy=0.01),
    ]
    shown, said = limited(many, 4, "The chart shows")
    assert [cell.fingerprint for cell in shown] == ["f6", "f7", "f8", full.fingerprint]
    (words,) = said
    assert "the full cache and the most accurate others, 4 of 11 policies" in words
    assert limited(many, 11, "The chart shows") == (many, [])
    assert "full" not in limited(many[:-1], 4, "The chart shows")[1][0]
    assert limited([], 4, "The chart shows") == ([], [])


def test_a_long_list_has_its_margin_given(cells):
    def margins(count):
        many = [dataclasses.replace(cells[1], fingerprint=str(i), policy=f"h2o budget={i}") for i in range(count)]
        layout = figures.outcome_bars(many).layout
        return layout.yaxis.automargin, layout.margin.l

    assert margins(10) == (True, 10)
    automatic, left = margins(100)
    assert automatic is False
    assert 80 < left < 200  # room for "h2o budget=99" and the axis title
