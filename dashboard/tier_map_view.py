"""The part of the Samples page that shows where a sample's tokens lay, beside another policy's if one is compared."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st
from sqlalchemy import Engine

from dashboard import data, tier_bytes, tier_figures, tier_words
from dashboard.choices import choose, remember, remembered
from dashboard.show import show
from db import queries
from db.errors import StorageError
from db.queries import SampleDetail, TierMap

try:  # Streamlit's word for the colour of text, whichever theme there is; its default for charts is too pale
    from streamlit.elements.lib.streamlit_plotly_theme import GRAY_90 as INK
except ImportError:
    INK = None

ALL = "all"
NO_MAP = (
    "This sample has no tier map: with `tier_maps: 3` in the sweep's file, `tiercache run FILE` keeps one of each "
    "cell's first 3 problems and leaves the stored samples as they are."
)


def tier_map(source: data.Source, shown: Sequence[tuple[str, SampleDetail]]) -> None:
    """Show the maps of one problem's samples, one or two, each with its policy's label; or how to get one."""
    st.divider()
    st.text("Where each token lay")
    found: list[tuple[str, TierMap]] = []
    for place, (label, sample) in enumerate(shown):
        try:
            one = _read(source.key, source.engine, sample.fingerprint, sample.problem_id, sample.repeat)
        except StorageError as error:
            st.text(f"The tier map of {label} can't be read: {error}")
            continue
        if one is not None:
            found.append((label, one))
            _say_if_another(label, one, sample)
        elif place == 0:
            st.text(NO_MAP)
        else:
            st.text(f"The sample under {label} has no tier map.")
    if found:
        _explore(found)


@st.cache_resource(max_entries=8, show_spinner=False)
def _read(key: tuple[str, int], _engine: Engine, fingerprint: str, problem_id: str, repeat: int) -> TierMap | None:
    """Nobody changes a map, so it is kept as it is: a copy of a long one takes as long as reading it."""
    return queries.get_tier_map(_engine, fingerprint, problem_id, repeat)


def _say_if_another(label: str, tiers: TierMap, sample: SampleDetail) -> None:
    """A map that was added later is of another run of the same sample."""
    mapped, stored = tiers.tokens - tiers.prompt_tokens, sample.output_tokens
    if stored is not None and stored != mapped:
        st.text(f"The map of {label} is of another run, with {mapped:,} output tokens instead of {stored:,}.")


@st.fragment
def _explore(found: Sequence[tuple[str, TierMap]]) -> None:
    """What follows the choice of a layer; the page around it is left alone."""
    layers = [ALL, *map(str, range(max(tiers.layers for _, tiers in found)))]
    with st.columns([1, 3])[0]:
        chosen = choose("Layers", layers, "layer", lambda key: "all layers" if key == ALL else f"layer {key}")
    layer = None if chosen == ALL else int(chosen)
    _look(found, layer)
    for column, (label, tiers) in zip(st.columns(len(found)), found, strict=True):
        words = f"Tier of each of {tiers.tokens:,} tokens at {tiers.looks} looks, of {label}"
        show(tier_figures.step_map(tiers, layer), alt=words, name="tiers over steps", place=column)
    show(tier_bytes.over_time(found), alt=tier_bytes.time_in_words(found), name="bytes over steps")


@st.fragment
def _look(found: Sequence[tuple[str, TierMap]], layer: int | None) -> None:
    """What follows the slider: the text alone, so that it follows at once."""
    maps = [tiers for _, tiers in found]
    mark = tier_words.first_difference(*maps) if len(maps) == 2 else None
    with st.container(horizontal=True, vertical_alignment="bottom"):
        step = _step(maps)
        part = _part(maps, mark)
    if len(maps) == 2:
        st.text(_parting(maps[0], mark))
    characters = tier_figures.ALONE if len(found) == 1 else tier_figures.BESIDE
    for column, (label, tiers) in zip(st.columns(len(found)), found, strict=True):
        column.text(f"{label}\n{tier_words.bytes_in_words(tiers, step)}")
        if tiers.importance is None:
            column.text(f"No importance: {tiers.no_importance}.")
    for column, (label, tiers) in zip(st.columns(len(found)), found, strict=True):
        look = tiers.look_at(step)
        figure = tier_figures.token_map(tiers, look, layer, characters=characters, part=part, mark=mark, ink=INK)
        words = tier_words.in_words(tiers, look, layer)
        show(figure, alt=f"Tier map of {label}: {words}", name="tier map", place=column)


def _part(maps: Sequence[TierMap], mark: int | None) -> range:
    """Ask which tokens of a long text are shown; first those where two texts part."""
    size = tier_figures.PART // len(maps)
    most = max(tiers.tokens for tiers in maps)
    parts = {str(start + 1): range(start, start + size) for start in range(0, most, size)}
    if len(parts) == 1:
        return range(most)
    if remembered("token") not in parts:
        parting = (name for name, part in parts.items() if mark is not None and mark in part)
        remember("token", next(parting, "1"))
    with st.container(width=220):
        chosen = choose("Tokens", list(parts), "token", lambda key: _told(parts[key], most))
    return parts[chosen]


def _told(part: range, most: int) -> str:
    return f"{part.start + 1:,} to {min(part.stop, most):,} of {most:,}"


def _step(maps: Sequence[TierMap]) -> int:
    """Ask for a decode step, one at which something was looked at; it lives in the URL."""
    steps = sorted({int(step) for tiers in maps for step in tiers.steps})
    if len(steps) == 1:
        return steps[0]
    key = f"look {hash(tuple(steps))}"
    step = st.select_slider("After decode step", steps, _wanted(steps), format_func="{:,}".format, key=key)
    remember("look", str(step))
    return int(step)


def _wanted(steps: Sequence[int]) -> int:
    """The look that the URL names, or the last one before it; else the last of all."""
    told = remembered("look") or ""
    wanted = int(told) if told.isdecimal() and len(told) < 10 else steps[-1]
    return max((step for step in steps if step <= wanted), default=steps[0])


def _parting(tiers: TierMap, mark: int | None) -> str:
    if mark is None:
        return "Both wrote the same tokens."
    return f"The texts part at output token {mark - tiers.prompt_tokens + 1:,}, which has a red frame in both maps."
