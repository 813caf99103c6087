"""Which policy to use at a byte budget, which to avoid and why, what can't be decided: sentences and their cells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from urllib.parse import urlencode

import pandas as pd
import streamlit as st
from sqlalchemy import Engine

from dashboard import data
from dashboard.advice_figures import in_words, losses
from dashboard.choices import choose, remember, remembered, sweep_names, write
from dashboard.colours import looks
from dashboard.downloads import downloads
from dashboard.show import show
from dashboard.tables import list_height
from db.connection import default_url
from db.queries import cell_summaries
from jobs.advice import Answer, Question, Sentence, Share, answer, command, room, sentences, settings
from jobs.capacity import read_bytes
from tiercache.errors import TierCacheError
from tiercache.shapes import KNOWN

ALL = "all sweeps"
KINDS = {"share": "a share of the full cache's bytes", "bytes": "bytes on a GPU"}
SHARES = [f"{percent / 100:g}" for percent in (10, 20, 25, 30, 40, 50, 60, 70, 75, 80, 90, 100)]
LOSSES = ["0.5", "1", "2", "3", "5", "10"]
MODELS = {name.rsplit("/", 1)[-1]: name for name in KNOWN} | {"reasoner": "reasoner"}
CONTEXTS = [str(2**power) for power in range(9, 18)]
PROMPTS = ["128", "512", "2048", "8192"]
BATCHES = [str(2**power) for power in range(10)]
HEADS = {
    "use": "Use",
    "beyond": "Nothing fits that is shown to hold",
    "speed": "Speed",
    "avoid": "Don't use",
    "open": "Can't be decided yet",
    "scale": "At other scales",
}


def page() -> None:
    """Show the page."""
    st.title("Which policy?")
    source = data.source()
    names = data.names_of_sweeps(source.key, source.engine)
    if not names:
        data.nothing_yet("The database holds no sweep.")
    columns = st.columns(3)
    with columns[0]:
        sweep_id = choose("Sweep", [ALL, *names], "evidence", sweep_names({ALL: ALL, **names}))
    there = data.places(source.key, source.engine, None if sweep_id == ALL else sweep_id)
    if not there:
        st.text("This sweep has no cells.")
        return
    with columns[1]:
        model = choose("Measured on model", sorted({place.model for place in there}), "model")
    there = [place for place in there if place.model == model]
    with columns[2]:
        benchmark = choose("Benchmark", sorted({place.benchmark for place in there}), "benchmark")
    protocols = [place.protocol for place in there if place.benchmark == benchmark]
    protocol = protocols[0]
    with st.container():  # always there: what follows keeps its place, and the browser what it has drawn
        if len(protocols) > 1:
            protocol = choose("Protocol", protocols, "protocol", lambda key: key[:8])
    try:
        question = _question()
        with st.spinner("Counting …"):
            found = _answer(source.key, source.engine, sweep_id, model, benchmark, protocol, question)
    except TierCacheError as problem:  # it may quote what stands in the URL: plain text
        st.warning("This can't be answered", icon=":material/error:")
        st.text(str(problem))
        return
    _show(source, found, [] if sweep_id == ALL else [sweep_id])


@st.cache_data(max_entries=64, show_spinner=False)
def _answer(
    key: tuple[str, int],
    _engine: Engine,
    sweep_id: str,
    model: str,
    benchmark: str,
    protocol: str,
    question: Question,
) -> Answer:
    cells = cell_summaries(_engine, None if sweep_id == ALL else sweep_id, model=model, benchmark=benchmark)
    (setting,) = settings(_engine, [cell for cell in cells if cell.protocol == protocol])
    return answer(setting, question)


def _question() -> Question:
    """The budget and the loss, out of the URL."""
    columns = st.columns([2, 1, 1])
    with columns[0]:
        kind = choose("Budget", list(KINDS), "budget", KINDS.__getitem__)
    with columns[2]:
        loss = float(_usual("Tolerated loss (points)", LOSSES, "loss", "2")) / 100
    if kind == "share":
        with columns[1]:
            share = _usual("At most", SHARES, "share", "0.5", lambda text: f"{float(text):.0%}")
        return Question(Share(float(share)), loss)
    with columns[1]:
        size = write("For keys and values", "room", "8GiB") or "8GiB"
    places = st.columns([2, 1, 1, 1])
    with places[0]:
        target = choose("Planned for model", list(MODELS), "planned_for")
    with places[1]:
        context = int(_usual("Context (tokens)", CONTEXTS, "context", "8192", _thousands))
    with places[2]:
        prompt = min(context, int(_usual("of which prompt", PROMPTS, "prompt", "512", _thousands)))
    with places[3]:
        rows = int(_usual("Batch (rows)", BATCHES, "batch", "8"))
    return Question(room(read_bytes(size, "For keys and values"), MODELS[target], context, prompt, rows), loss)


def _usual(label: str, options: Sequence[str], name: str, usual: str, shown: Callable[[str], str] = str) -> str:
    """A choice whose usual value is not the first."""
    if remembered(name) not in options:
        remember(name, usual)
    return choose(label, options, name, shown)


def _thousands(text: str) -> str:
    return f"{int(text):,}"


def _show(source: data.Source, found: Answer, sweeps: Sequence[str]) -> None:
    said = sentences(found)
    left, right = st.columns([3, 2], gap="large")
    with left:
        for each in said:
            if each.kind == "measured":
                st.text(each.text)
        for kind, head in HEADS.items():
            texts = [each.text for each in said if each.kind == kind]
            if texts:
                st.subheader(head)
                for text in texts:  # labels may come from anybody's file: never Markdown
                    st.text(text)
    with right:
        look = looks(data.all_policies(source.key, source.engine))
        show(losses(found, look), alt=in_words(found), name="losses")
        st.caption(
            "Below the dashed line more is lost than is tolerated; intervals are 95%. Hollow: neither shown to keep "
            "the accuracy nor to lose more, or beyond the budget."
        )
    st.subheader("Candidates")
    table = candidates(found)
    st.dataframe(
        table,
        hide_index=True,
        height=list_height(len(table)),
        placeholder="–",
        alt="Candidates, the least bytes first, with what they lose",
        column_config=_columns(),
    )
    downloads(table, "candidates")
    with st.expander("Cells behind each sentence"):
        behind = backing(found, said)
        st.dataframe(behind, hide_index=True, placeholder="–", alt="Cells behind each sentence")
        downloads(behind, "cells behind each sentence")
    st.text("The same numbers:")
    st.code(command(found, sweeps, default_url()), language="bash", wrap_lines=True)


def candidates(found: Answer) -> pd.DataFrame:
    """One row a policy, the least share of bytes first; losses in points, below 0 a gain."""
    setting = found.setting
    place = {"model": setting.model, "benchmark": setting.benchmark, "protocol": setting.protocol, "sweep": ALL}
    rows = []
    for each in found.candidates:
        cell, size, margin = each.cell, each.size, each.margin
        rows.append(
            {
                "verdict": each.verdict,
                "policy": cell.policy,
                "share": size.share,
                "device bytes": None if size.device is None else round(size.device),
                "host bytes": None if size.host is None else round(size.host),
                "loss": None if margin is None else -100 * margin.difference,
                "loss low": None if margin is None else -100 * margin.high,
                "loss high": None if margin is None else -100 * margin.low,
                "n": None if margin is None else margin.n,
                "p holds": each.p_holds,
                "p loses more": each.p_fails,
                "n needed": each.needed,
                "accuracy": cell.accuracy,
                "why": each.why or None,
                "samples": f"samples?{urlencode({'cell': cell.fingerprint})}",
                "compare": f"compare?{urlencode({**place, 'view': 'paired'})}",
            }
        )
    return pd.DataFrame(rows, columns=list(rows[0]) if rows else ["verdict", "policy"])


def backing(found: Answer, said: Sequence[Sentence]) -> pd.DataFrame:
    """The cells that each sentence rests on, with what was measured of them."""
    by_key = {each.cell.fingerprint: each for each in found.candidates}
    full = found.setting.full
    rows = []
    for place, sentence in enumerate(said, start=1):
        for key in sentence.cells:
            each = by_key.get(key)
            margin = each.margin if each else None
            rows.append(
                {
                    "sentence": place,
                    "says": sentence.text,
                    "policy": each.cell.policy if each else (full.policy if full else None),
                    "cell": key,
                    "n": margin.n if margin else (full.problems if full and key == full.fingerprint else None),
                    "difference": margin.difference if margin else None,
                    "low": margin.low if margin else None,
                    "high": margin.high if margin else None,
                    "p holds (Holm)": each.p_holds if each else None,
                    "p loses more (Holm)": each.p_fails if each else None,
                }
            )
    return pd.DataFrame(rows)


def _columns() -> dict[str, object]:
    percent, whole = st.column_config.NumberColumn(format="percent"), st.column_config.NumberColumn(format="localized")
    points = st.column_config.NumberColumn(format="%.1f", help="points of accuracy lost, with the 95% interval")
    small = "%.4f"
    return {
        "policy": st.column_config.TextColumn(pinned=True),
        "verdict": st.column_config.TextColumn(pinned=True),
        "share": st.column_config.NumberColumn(format="percent", help="device bytes over the full cache's"),
        "accuracy": percent,
        "device bytes": whole,
        "host bytes": whole,
        "loss": points,
        "loss low": points,
        "loss high": points,
        "p holds": st.column_config.NumberColumn(
            format=small, help="of “it loses the tolerated points or more”, by Holm; holds below 0.025"
        ),
        "p loses more": st.column_config.NumberColumn(
            format=small, help="of “it loses no more than the tolerated points”, by Holm; avoid below 0.025"
        ),
        "n needed": st.column_config.NumberColumn(format="localized", help="problems that would decide, about"),
        "samples": st.column_config.LinkColumn(display_text="open"),
        "compare": st.column_config.LinkColumn(display_text="open"),
    }
