"""Single samples: what was asked, what the model wrote under a policy, and beside it under another.

Everything a model wrote is hostile text: it is shown by st.code and st.text, which don't interpret it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import Any

import pandas as pd
import streamlit as st

from dashboard import data, figures
from dashboard.choices import choose, remember, remembered, write
from dashboard.downloads import downloads
from dashboard.drawing import FULL
from dashboard.row_choice import choose_row
from dashboard.show import show
from dashboard.tables import sample_table
from dashboard.tier_map_view import tier_map
from dashboard.wording import OUTCOME_NAMES, human_bytes, number
from db import queries
from db.disagreements import Disagreement, count_disagreements, list_disagreements
from db.queries import CellInfo, SampleDetail, SampleInfo

PAGE_ROWS = 50
ANY = "any outcome"
NOTHING = "nothing"
PARTING = " ▶ "
AROUND = 160  # characters shown on each side of where two outputs part
DISAGREEMENTS: dict[str, Disagreement] = {"lost": "lost", "gained": "gained"}
FILTERS = {
    "lost": "wrong here, right with the full cache",
    "gained": "right here, wrong with the full cache",
    ANY: ANY,
    **OUTCOME_NAMES,
}


def page() -> None:
    """Show the page."""
    st.title("Samples")
    source = data.source()
    cells = {cell.fingerprint: cell for cell in data.cells(source.key, source.engine, None)}
    if not cells:
        data.nothing_yet("The database holds no cell.")
    left, middle, right = st.columns([3, 2, 2])
    with left:
        fingerprint = choose("Cell", list(cells), "cell", lambda key: _cell_name(cells[key]))
    full = _full_of(cells, fingerprint)
    with middle:
        options = [key for key in FILTERS if full or key not in DISAGREEMENTS]
        if remembered("outcome") not in options:
            remember("outcome", ANY)
        outcome = choose("Show", options, "outcome", FILTERS.__getitem__)
    with right:
        search = write("Text", "search", "in prompt, output, answer, problem or error")
    rows = _Rows(source, fingerprint, outcome, search, full)
    total = rows.count()
    if total == 0:
        filtered = outcome != ANY or bool(search)
        st.text("No sample matches these filters." if filtered else "No sample of this cell has finished yet.")
        return
    sample = _pick(rows, total)
    if sample is not None:
        _detail(source, sample, full if outcome in DISAGREEMENTS else None, cells)


def _full_of(cells: Mapping[str, CellInfo], fingerprint: str) -> str | None:
    """Return the full cache's cell that a cell can be compared with, if there is another."""
    own = cells[fingerprint]
    alike = (
        cell.fingerprint
        for cell in cells.values()
        if (cell.policy_name, cell.model, cell.benchmark, cell.protocol)
        == (FULL, own.model, own.benchmark, own.protocol)
    )
    return next((found for found in alike if found != fingerprint), None)


@dataclass(frozen=True, slots=True)
class _Rows:
    """The samples that pass the filters."""

    source: data.Source
    fingerprint: str
    show: str
    search: str
    full: str | None

    def count(self) -> int:
        if self.full and self.show in DISAGREEMENTS:
            kind = DISAGREEMENTS[self.show]
            return count_disagreements(self.source.engine, self.fingerprint, self.full, kind, self.search)
        return queries.count_samples(self.source.engine, self.fingerprint, self._outcome(), self.search)

    def part(self, offset: int) -> list[SampleInfo]:
        if self.full and self.show in DISAGREEMENTS:
            kind = DISAGREEMENTS[self.show]
            return list_disagreements(
                self.source.engine, self.fingerprint, self.full, kind, self.search, PAGE_ROWS, offset
            )
        return queries.list_samples(
            self.source.engine, self.fingerprint, self._outcome(), self.search, PAGE_ROWS, offset
        )

    def _outcome(self) -> str | None:
        return None if self.show == ANY else self.show


def _cell_name(cell: CellInfo) -> str:
    return f"{cell.model} · {cell.benchmark} · {cell.policy} [{cell.fingerprint[:6]}]"


def _pick(found: _Rows, total: int) -> SampleDetail | None:
    """Show one page of the list and return the sample chosen in it, else the URL's, else the first."""
    source, fingerprint = found.source, found.fingerprint
    pages = -(-total // PAGE_ROWS)
    number_of_page = 1
    if pages > 1:
        number_of_page = int(st.number_input(f"Page (of {pages})", 1, pages, width=160))
    rows = found.part((number_of_page - 1) * PAGE_ROWS)
    ids = [f"{row.repeat}:{row.problem_id}" for row in rows]
    mapped = queries.tier_map_keys(source.engine, [fingerprint])
    has_map = [(fingerprint, row.problem_id, row.repeat) in mapped for row in rows]
    st.caption(f"{total:,} samples. Choose one by the box at the left of its row.")
    chosen = remembered("sample")
    if chosen is None:  # kept from now on: rows that come later leave it where it is
        chosen = ids[has_map.index(True) if True in has_map else 0]
        remember("sample", chosen)
    sample = _sample(source, fingerprint, chosen)
    if sample is None:
        chosen, sample = ids[0], _sample(source, fingerprint, ids[0])
    table = sample_table(rows)
    if mapped:
        table.insert(len(table.columns) - 1, "tier map", ["yes" if has else "–" for has in has_map])
    choose_row(
        table,
        ids,
        f"sample {fingerprint}",
        chosen,
        partial(remember, "sample"),
        required=True,
        hide_index=True,
        height=min(38 + 35 * len(rows), 300),
        placeholder="–",
        column_config={"wall (s)": st.column_config.NumberColumn(format="%.2f")},
        alt="Samples of the cell",
    )
    downloads(table, "samples")
    return sample


def _sample(source: data.Source, fingerprint: str, chosen: str) -> SampleDetail | None:
    """Return the sample that an id of the list names, if the cell has it."""
    repeat, _, problem = chosen.partition(":")
    if not repeat.isdecimal() or len(repeat) > 9:
        return None
    return queries.get_sample(source.engine, fingerprint, problem, int(repeat))


def _detail(source: data.Source, sample: SampleDetail, beside: str | None, cells: Mapping[str, CellInfo]) -> None:
    st.divider()
    facts, tiers = st.columns([2, 3], gap="medium")
    with facts:
        st.text(f"Problem {sample.problem_id}, repeat {sample.repeat}")
        facts = pd.DataFrame(_facts(sample))
        st.dataframe(facts, hide_index=True, alt="Facts of the sample")
        downloads(facts, "sample")
    with tiers:
        if sample.hbm_tokens is None:
            st.text("Tokens by tier were not measured.")
        else:
            figure = figures.tier_tokens(
                sample.hbm_tokens, sample.ddr_tokens, sample.packed_tokens, sample.evicted_tokens
            )
            show(figure, alt="One sample's tokens by tier at the end", name="tokens by tier")
    if sample.error:
        st.text("Error")
        _verbatim(st, sample.error, 150)
    st.text("Prompt")
    _verbatim(st, sample.prompt, 200)
    other = _outputs(source, sample, beside)
    shown = [sample] if other is None else [sample, other]
    labels = {key: cell.policy for key, cell in cells.items()}
    tier_map(source, [(labels.get(each.fingerprint, each.fingerprint[:8]), each) for each in shown])


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


def _outputs(source: data.Source, sample: SampleDetail, first: str | None) -> SampleDetail | None:
    """Show the output, and beside it another policy's on the same problem, with the place where they part; return it.

    `first` is the cell that the list was filtered by: it stands beside until another is chosen.
    """
    rivals = queries.same_problem(source.engine, sample.fingerprint, sample.problem_id, sample.repeat)
    named = {info.fingerprint: f"{policy}: {OUTCOME_NAMES.get(info.outcome, info.outcome)}" for policy, info in rivals}
    options = [first, *(key for key in named if key != first)] if first in named else [NOTHING, *named]
    beside = NOTHING
    if rivals:
        beside = choose("Compare with the same problem under", options, "beside", lambda key: named.get(key, key))
    other = None
    if beside != NOTHING:
        other = queries.get_sample(source.engine, beside, sample.problem_id, sample.repeat)
    if other is None:
        st.text("Output")
        _verbatim(st, sample.output, 420)
        return None
    titles = f"This policy: {OUTCOME_NAMES.get(sample.outcome, sample.outcome)}", named[beside]
    texts = sample.output, other.output
    same = shared_prefix(*texts)
    if same == len(sample.output) == len(other.output):
        st.text("The outputs are equal.")
        marked = texts
    else:
        st.text(f"The outputs part after {same:,} characters (at {PARTING.strip()} below).")
        if same > 2 * AROUND:  # further down than one sees at once
            for column, text in zip(st.columns(2), texts, strict=True):
                _verbatim(column, around(text, same), 420)
        left, right = (f"{text[:same]}{PARTING}{text[same:]}" for text in texts)
        marked = left, right
    for column, title, text in zip(st.columns(2), titles, marked, strict=True):
        column.text(title)
        _verbatim(column, text, 420)
    return other


def around(text: str, place: int, width: int = AROUND) -> str:
    """Return the text about `place`, which is marked; an ellipsis stands for what is cut off."""
    before, after = text[max(0, place - width) : place], text[place : place + width]
    if not after:
        after = "(ends here)"
    start, end = "…" if place > width else "", "…" if place + width < len(text) else ""
    return f"{start}{before}{PARTING}{after}{end}"


def _verbatim(place: Any, text: str, height: int) -> None:
    """Show hostile text as it is; a long one scrolls within `height` pixels."""
    long = len(text) > 4 * height or text.count("\n") > height // 25
    place.code(text, language=None, wrap_lines=True, height=height if long else "content")


def shared_prefix(left: str, right: str) -> int:
    """Return how many characters two texts have in common from the start."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False)))


def _count(tokens: int | None) -> str:
    return "?" if tokens is None else f"{tokens:,}"
