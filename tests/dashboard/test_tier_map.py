"""The tier map: what is drawn is what was written down, and a token is text and nothing else."""

import dataclasses
import html
import time

import numpy as np
import pytest

from dashboard import tier_figures, tier_words
from dashboard.tier_text import LONGEST, columns, label, lay_out
from db.tier_maps import ABSENT, EVICTED, TIERS


@pytest.fixture
def make(made_maps):
    return made_maps.make


# Text ---------------------------------------------------------------------------------------------------------------


def test_labels_are_visible_and_on_one_line():
    assert [label(text) for text in ("word", " word", "\n", "a\nb\t", "", " ", "   ")] == [
        "word",
        "word",
        "⏎",
        "a⏎b⇥",
        "∅",
        "␣",
        "␣",
    ]
    assert label("x" * 500) == "x" * (LONGEST - 1) + "…"
    assert label("\u202eabc\x00\u200b") == "·abc··", "what turns or hides text is a dot"
    assert (columns("ab"), columns("漢字"), columns("e\u0301")) == (2, 4, 1)


@pytest.mark.parametrize("characters", [20, 50, 104])
def test_tokens_stand_in_reading_order_and_apart(characters):
    texts = ["a", " word", "漢字", "x" * 400, "\n"] * 40
    layout = lay_out(texts, characters)
    last = (-1, 0)
    for row, start, width in zip(layout.rows, layout.starts, layout.widths, strict=True):
        assert (row, start) > last
        assert start == 0 or start > last[1]
        assert start + width <= layout.width
        last = (row, start + width) if start + width < layout.width else (row, layout.width)
    assert sorted(set(layout.rows)) == list(range(layout.height))
    assert lay_out([], 50).height == 0


def told_of(tiers, look):
    return tier_words.hover_data(tiers, tiers.overall, look, range(tiers.seen[look]))


def marks(figure, mode):
    return [trace for trace in figure.data if trace.type == "scatter" and trace.mode == mode]


# Figures ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layer", [None, 1])
def test_each_token_has_its_tier(layer, make):
    tiers = make()
    for look in range(tiers.looks):
        figure = tier_figures.token_map(tiers, look, layer)
        codes = tier_figures.placed(tiers, layer)[look]
        shown = [words for trace in marks(figure, "text") for words in trace.customdata]
        assert len(shown) == tiers.seen[look]
        for words in shown:
            token = int(words[1].rpartition(" ")[2]) if "position" in words[1] else None
            assert words[2].split(",")[0] == TIERS[codes[token]]
        heat = figure.data[0]
        layout = lay_out(tiers.texts[: tiers.seen[look]], tier_figures.ALONE)
        for i, (row, start, width) in enumerate(zip(layout.rows, layout.starts, layout.widths, strict=True)):
            assert set(heat.z[row, start : start + width]) == {codes[i]}
        assert np.isfinite(heat.z).sum() == sum(layout.widths)
        assert f"step {tiers.steps[look]}" in figure.layout.title.text
        legend = {trace.name for trace in marks(figure, "markers")}
        assert any(f"evicted (struck out): {(codes == EVICTED).sum()}" == name for name in legend)


def test_a_part_is_that_part(make):
    tiers, part = make(), range(10, 18)
    figure, whole = tier_figures.token_map(tiers, 5, part=part, mark=12), tier_figures.token_map(tiers, 5)
    told = [words[1] for trace in marks(figure, "text") for words in trace.customdata]
    assert sorted(int(words.rpartition(" ")[2]) for words in told) == list(part)
    assert len(figure.layout.shapes) == 1
    assert tier_figures.token_map(tiers, 5, part=part, mark=3).layout.shapes == ()
    assert [trace.name for trace in marks(figure, "markers")] == [trace.name for trace in marks(whole, "markers")]
    early = tier_figures.token_map(tiers, 0, part=part)
    assert sum(len(trace.text or ()) for trace in marks(early, "text")) == 0, "they are to come"


def test_what_is_said_of_a_token(make):
    tiers = make()
    tiers.overall[:, 3] = [0, 0, 1, 1, 3, 3]
    tiers.overall[:, [0, 1, 2]] = 0
    told = told_of(tiers, 5)
    assert told[3][1:3] == ["prompt token, position 3", "evicted, since the look at step 16"]
    assert told[2][2] == "HBM, since it was written"
    assert told[7][1] == "output token 3, position 7"
    assert told_of(tiers, 3)[3][2] == "DDR, since the look at step 8"
    assert told[0][4] == "– (it may not move now)"
    ranked = [float(tiers.importance[5, i]) for i in range(1, tiers.seen[5]) if tiers.overall[5, i] != EVICTED]
    assert told[1][4] == f"{ranked[0]:.4g}, number {1 + sum(each > ranked[0] for each in ranked)} of {len(ranked)}"
    without = told_of(make(scores=False), 5)
    assert {words[4] for words in without} == {"– (the policy ranks &lt;none&gt;)"}


def test_a_score_of_an_earlier_look_says_so(make):
    tiers = dataclasses.replace(make(), scored=np.array([True, False, True, False, False, True]))
    assert told_of(tiers, 4)[1][4].endswith(" at step 8")
    assert " at step" not in told_of(tiers, 2)[1][4]


def test_a_token_is_text_and_nothing_else(make, made_maps):
    tiers = make(texts=made_maps.HOSTILE, prompt=9)
    figure = tier_figures.token_map(tiers, 5)
    written = [text for trace in marks(figure, "text") for text in trace.text]
    told = [words for trace in marks(figure, "text") for words in trace.customdata]
    for text in written:
        inner = text
        for start, end in (("<i>", "</i>"), ("<u>", "</u>"), ("<s>", "</s>")):
            if inner.startswith(start):
                inner = inner[len(start) : -len(end)]
        assert "<" not in inner
    assert not any("<" in words[0] for words in told)
    assert html.unescape(next(words[0] for words in told if "script" in words[0])) == made_maps.HOSTILE[0]
    assert all(trace.hovertemplate == tier_words.HOVER for trace in marks(figure, "text"))
    assert "customdata[4]" in tier_words.HOVER


def test_the_first_difference_is_framed(make):
    left, right = make(), make(seed=1)
    assert tier_words.first_difference(left, right) is None
    right.ids[7] = 99
    assert tier_words.first_difference(left, right) == 7
    longer = make(looks=7)
    assert tier_words.first_difference(left, longer) == left.tokens, "one ends where the other goes on"
    figure = tier_figures.token_map(left, 5, mark=7)
    (frame,) = figure.layout.shapes
    layout = lay_out(left.texts[: left.seen[5]], tier_figures.ALONE)
    assert (frame.x0 + 0.5, frame.x1 + 0.5) == (layout.starts[7], layout.starts[7] + layout.widths[7])
    assert tier_figures.token_map(left, 0, mark=7).layout.shapes == (), "it isn't there yet"


def test_tokens_over_steps(make):
    tiers = make()
    heat = tier_figures.step_map(tiers, 1).data[0]
    assert list(heat.y) == tiers.steps.tolist()
    wanted = tiers.tiers[:, 1]
    assert (np.isnan(heat.z) == (wanted == ABSENT)).all()
    assert (heat.z[wanted != ABSENT] == wanted[wanted != ABSENT]).all()
    assert heat.text[3][2] == TIERS[wanted[3, 2]]
    assert heat.text[0][-1] == ""
    figure = tier_figures.step_map(tiers)
    assert figure.layout.xaxis.title.text
    assert figure.layout.yaxis.title.text


def test_a_long_map_is_drawn_in_time(make):
    tiers = make(looks=256, layers=4, prompt=160, every=15)
    assert tiers.tokens == 3986
    begun = time.process_time()
    token_map = tier_figures.token_map(tiers, 255, part=range(2000, 2000 + tier_figures.PART))
    steps = tier_figures.step_map(tiers)
    assert time.process_time() - begun < 1
    assert steps.data[0].z.size <= tier_figures.MOST_CELLS
    assert len(token_map.to_json()) + len(steps.to_json()) < 1_500_000
    assert "every 6th shown" in steps.layout.xaxis.title.text


def test_words_for_those_who_cannot_see_it(make):
    tiers = make()
    counts = [int((tiers.overall[2] == code).sum()) for code in range(4)]
    told = ", ".join(f"{count} {tier}" for count, tier in zip(counts, TIERS, strict=True))
    assert tier_words.in_words(tiers, 2, None) == f"13 tokens after decode step 8, all layers: {told}"
    assert tier_words.bytes_in_words(tiers, 4) == (
        "4.0 KiB HBM, 12.0 KiB packed, 8.0 KiB DDR; the full cache would hold 20.0 KiB. "
        "Moved so far: 24.0 KiB to the host, 28.0 KiB back."
    )
