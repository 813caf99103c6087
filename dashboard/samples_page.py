"""Single samples: what was asked, what the model wrote under a policy, and beside it under another.

Everything a model wrote is hostile text: it is shown by st.code and st.text, which don't interpret it.
"""

from __future__ import annotations

from itertools import takewhile
from typing import Any

import streamlit as st

from dashboard import data, figures
from dashboard.choices import choose, remember, remembered, write
from dashboard.tables import sample_table
from dashboard.wording import OUTCOME_NAMES, human_bytes, number
from db import queries
from db.queries import CellSummary, SampleDetail

PAGE_ROWS = 50
ANY = "any outcome"
NOTHING = "nothing"
PARTING = " ▶ "


def page() -> None:
    """Show the page."""
    st.title("Samples")
    source = data.source()
    cells = {cell.fingerprint: cell for cell in data.summaries(source.key, source.engine, None)}
    if not cells:
        data.nothing_yet("The database holds no cell.")
    left, middle, right = st.columns([3, 1, 2])
    with left:
        fingerprint = choose("Cell", list(cells), "cell", lambda key: _cell_name(cells[key]))
    with middle:
        outcome = choose("Outcome", [ANY, *OUTCOME_NAMES], "outcome", lambda key: OUTCOME_NAMES.get(key, key))
    with right:
        search = write("Text", "search", "in prompt, output, answer, problem or error")
    wanted = None if outcome == ANY else outcome
    total = queries.count_samples(source.engine, fingerprint, wanted, search)
    if total == 0:
        filtered = wanted is not None or bool(search)
        st.text("No sample matches these filters." if filtered else "No sample of this cell has finished yet.")
        return
    sample = _pick(source, fingerprint, wanted, search, total)
    if sample is not None:
        _detail(source, sample)


def _cell_name(cell: CellSummary) -> str:
    return f"{cell.model} · {cell.benchmark} · {cell.policy} [{cell.fingerprint[:6]}]"


def _pick(source: data.Source, fingerprint: str, outcome: str | None, search: str, total: int) -> SampleDetail | None:
    """Show one page of the list and return the sample chosen in it, else the URL's, else the first."""
    pages = -(-total // PAGE_ROWS)
    number_of_page = 1
    if pages > 1:
        number_of_page = int(st.number_input(f"Page (of {pages})", 1, pages, width=160))
    rows = queries.list_samples(
        source.engine, fingerprint, outcome, search, PAGE_ROWS, offset=(number_of_page - 1) * PAGE_ROWS
    )
    st.caption(f"{total:,} samples. Choose one by the box at the left of its row.")
    state = st.dataframe(
        sample_table(rows),
        hide_index=True,
        height=min(38 + 35 * len(rows), 300),
        on_select="rerun",
        selection_mode="single-row",
        placeholder="–",
        column_config={"wall (s)": st.column_config.NumberColumn(format="%.2f")},
        key=f"list {fingerprint} {outcome} {search} {number_of_page}",
        alt="Samples of the cell",
    )
    selected = state["selection"]["rows"]
    if selected and selected[0] < len(rows):
        chosen = rows[selected[0]]
        remember("sample", f"{chosen.repeat}:{chosen.problem_id}")
        return queries.get_sample(source.engine, fingerprint, chosen.problem_id, chosen.repeat)
    repeat, _, problem = (remembered("sample") or "").partition(":")
    linked = queries.get_sample(source.engine, fingerprint, problem, int(repeat)) if repeat.isdecimal() else None
    return linked or queries.get_sample(source.engine, fingerprint, rows[0].problem_id, rows[0].repeat)


def _detail(source: data.Source, sample: SampleDetail) -> None:
    st.divider()
    facts, tiers = st.columns([2, 3], gap="medium")
    with facts:
        st.text(f"Problem {sample.problem_id}, repeat {sample.repeat}")
        st.dataframe(_facts(sample), hide_index=True, alt="Facts of the sample")
    with tiers:
        if sample.hbm_tokens is None:
            st.text("Tokens by tier were not measured.")
        else:
            figure = figures.tier_tokens(
                sample.hbm_tokens, sample.ddr_tokens, sample.packed_tokens, sample.evicted_tokens
            )
            st.plotly_chart(figure, config={"displayModeBar": False}, alt="One sample's tokens by tier at the end")
    if sample.error:
        st.text("Error")
        _verbatim(st, sample.error, 150)
    st.text("Prompt")
    _verbatim(st, sample.prompt, 200)
    _outputs(source, sample)


def _facts(sample: SampleDetail) -> dict[str, list[str]]:
    facts = {
        "outcome": OUTCOME_NAMES.get(sample.outcome, sample.outcome),
        "extracted answer": "none" if sample.extracted is None else sample.extracted,
        "reference": sample.reference,
        "ended by": sample.finish_reason,
        "tokens": f"{_count(sample.prompt_tokens)} prompt + {_count(sample.output_tokens)} output",
        "time": f"{number(sample.wall_s, 's', 2)}, first token after {number(sample.ttft_s, 's', 3)}",
        "resident KV": f"{human_bytes(sample.hbm_bytes_mean)} mean, {human_bytes(sample.hbm_bytes_peak)} peak",
        "full cache": f"{human_bytes(sample.full_bytes_mean)} mean, {human_bytes(sample.full_bytes_end)} at the end",
        "seed, attempt": f"{sample.seed}, {sample.attempt}",
    }
    return {"fact": list(facts), "value": list(facts.values())}


def _outputs(source: data.Source, sample: SampleDetail) -> None:
    """Show the output, and beside it another policy's on the same problem, with the place where they part."""
    rivals = queries.same_problem(source.engine, sample.fingerprint, sample.problem_id, sample.repeat)
    named = {info.fingerprint: f"{policy}: {OUTCOME_NAMES.get(info.outcome, info.outcome)}" for policy, info in rivals}
    beside = NOTHING
    if rivals:
        beside = choose(
            "Compare with the same problem under", [NOTHING, *named], "beside", lambda key: named.get(key, key)
        )
    if beside == NOTHING:
        st.text("Output")
        _verbatim(st, sample.output, 420)
        return
    other = queries.get_sample(source.engine, beside, sample.problem_id, sample.repeat)
    if other is None:
        return
    same = shared_prefix(sample.output, other.output)
    alike = same == len(sample.output) == len(other.output)
    st.text(
        "The outputs are equal."
        if alike
        else f"The outputs part after {same:,} characters (at {PARTING.strip()} below)."
    )
    for column, title, text in zip(
        st.columns(2), ("This policy", named[beside]), (sample.output, other.output), strict=True
    ):
        column.text(title)
        _verbatim(column, text if alike else f"{text[:same]}{PARTING}{text[same:]}", 420)


def _verbatim(place: Any, text: str, height: int) -> None:
    """Show hostile text as it is; a long one scrolls within `height` pixels."""
    long = len(text) > 4 * height or text.count("\n") > height // 25
    place.code(text, language=None, wrap_lines=True, height=height if long else "content")


def shared_prefix(left: str, right: str) -> int:
    """Return how many characters two texts have in common from the start."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False)))


def _count(tokens: int | None) -> str:
    return "?" if tokens is None else f"{tokens:,}"
