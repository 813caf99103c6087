"""The papers' claims and published tables beside what this database holds, with a verdict for each claim."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pandas as pd
import streamlit as st
from sqlalchemy import Engine

from dashboard import data
from dashboard.blocks_view import render
from dashboard.choices import choose, sweep_names
from dashboard.downloads import downloads
from dashboard.paper_figures import dumbbells, in_words
from dashboard.paper_results import Read, Result, of_papers, pairs, read, results, tables
from dashboard.show import show
from dashboard.tables import list_height
from db.connection import default_url, masked, parse_url
from db.queries import SweepInfo
from jobs.compare import Group, compare
from jobs.compare_report import p_text
from jobs.papers.claims import CLAIMS
from jobs.papers.kinds import ARXIV
from jobs.papers.sections import STAND_IN, details, protocol, where
from jobs.papers.settings import Setting
from jobs.papers.sources import Sources
from jobs.papers.tables import beside, points
from jobs.papers.verdicts import NOT_SUPPORTED, SUPPORTED, UNDECIDED

PAPERS_SWEEPS = "all of the papers' sweeps"
ANY_PAPER, ANY_VERDICT = "all papers", "all verdicts"
VERDICTS = (SUPPORTED, NOT_SUPPORTED, UNDECIDED)


def page() -> None:
    """Show the page."""
    st.title("Papers")
    source = data.source()
    sweeps = data.sweeps(source)
    if not sweeps:
        data.nothing_yet("The database holds no sweep.")
    ours = of_papers(sweeps)
    names = {sweep.id: sweep.name for sweep in [*ours, *(each for each in sweeps if each not in ours)]}
    columns = st.columns(3)
    with columns[0]:
        options = [PAPERS_SWEEPS, *names]
        sweep_id = choose("Sweep", options, "paper_sweep", sweep_names({PAPERS_SWEEPS: PAPERS_SWEEPS, **names}))
    with columns[1]:
        paper = choose("Paper", [ANY_PAPER, *ARXIV], "paper", _paper_name)
    with columns[2]:
        verdict = choose("Verdict", [ANY_VERDICT, *VERDICTS], "verdict")
    chosen = ours if sweep_id == PAPERS_SWEEPS else [sweep for sweep in sweeps if sweep.id == sweep_id]
    only = _where(source, chosen[0]) if len(chosen) == 1 and chosen[0] not in ours else None
    with st.spinner("Testing …"):
        reads, every = _judged(source.key, source.engine, tuple(sweep.id for sweep in chosen), only, chosen)
    of_paper = [each for each in every if paper in (ANY_PAPER, each.judged.claim.paper)]
    found = [each for each in of_paper if verdict in (ANY_VERDICT, each.judged.verdict)]
    for column, name in zip(st.columns(4), (*VERDICTS, "not run here"), strict=True):
        count = sum(each.judged.verdict == name for each in of_paper)
        missing = len(_missing(of_paper, paper))
        column.metric(name, missing if name == "not run here" else count)
    _verdicts(found)
    _not_run(of_paper, paper)
    _published(source, reads, paper)
    _protocols(reads)


def _where(source: data.Source, sweep: SweepInfo) -> tuple[str, str] | None:
    """Of a sweep that isn't the papers' own and may be large: one model on one benchmark at a time."""
    groups = {
        f"{cell.model} on {cell.benchmark}": (cell.model, cell.benchmark)
        for cell in data.cells(source.key, source.engine, sweep.id)
    }
    if not groups:
        return None
    with st.columns(3)[0]:
        return groups[choose("Judged on", list(groups), "judged_on")]


def _paper_name(paper: str) -> str:
    return next((f"{name}, arXiv {arxiv}" for name, arxiv in ARXIV.items() if name == paper), paper)


@st.cache_resource(max_entries=8, show_spinner=False)
def _judged(
    key: tuple[str, int],
    _engine: Engine,
    sweep_ids: tuple[str, ...],
    only: tuple[str, str] | None,
    _sweeps: Sequence[SweepInfo],
) -> tuple[list[Read], list[Result]]:
    """Frozen results, shared and not copied: they hold every score."""
    reads = [read(_engine, sweep, only) for sweep in _sweeps]
    reads = [each for each in reads if each.settings]
    return reads, results(reads)


def _verdicts(found: Sequence[Result]) -> None:
    if not found:
        st.info("No claim of this selection can be judged", icon=":material/fact_check:")
        st.text("A claim needs all of its cells in one sweep, with judged samples. All small forms together:")
        st.code("tiercache run sweeps/hierarchy_grid_mini.yaml", language="bash")
        return
    told = pairs(found)
    show(dumbbells(told), alt=in_words(told), name="published and ours")
    st.caption(
        "Grey bands: the smallest difference that matters to the claim. Published intervals take the paper's n as two "
        "separate groups, for its problems aren't known one by one; no interval where it states no n."
    )
    st.subheader("Verdicts")
    table = verdict_table(found)
    st.dataframe(
        table,
        hide_index=True,
        height=list_height(len(table)),
        alt="Claims with their verdicts",
        column_config={"claim": st.column_config.TextColumn(pinned=True)},
    )
    downloads(table, "verdicts")
    if any(each.judged.setting.data == "chain" for each in found):
        st.caption(STAND_IN)
    by_key = {f"{each.judged.claim.id} @ {each.sweep.id} @ {where(each.judged.setting)}": each for each in found}
    st.subheader("Tests of one claim")
    key = choose("Claim", list(by_key), "claim", _short(list(by_key)))
    each = by_key[key]
    render(details(each.judged, Sources(each.sweep.id, _url())), "tests of a claim")


def _short(keys: Sequence[str]) -> Callable[[str], str]:
    """Show the name alone where it says which one is meant."""
    names = [key.split(" @ ")[0] for key in keys]
    return lambda key: key if names.count(key.split(" @ ")[0]) > 1 else key.split(" @ ")[0]


def verdict_table(found: Sequence[Result]) -> pd.DataFrame:
    """One row a claim and setting; a claim of several tests has them behind each other."""
    rows = []
    for each in found:
        claim, findings = each.judged.claim, each.judged.findings
        rows.append(
            {
                "claim": claim.id,
                "verdict": each.judged.verdict,
                "difference, points [95%]": "; ".join(
                    f.says if f.found is None else points(f.found.value, f.found.low, f.found.high) for f in findings
                ),
                "p (Holm)": "; ".join(p_text(f.found.p if f.found else None) for f in findings),
                "problems": "; ".join(dict.fromkeys(str(f.n) for f in findings if f.found is not None)) or "–",
                "what it says": claim.says,
                "published": claim.published,
                "whose": f"arXiv {ARXIV[claim.paper]}" if claim.whose == "paper" else "our question",
                "judged on": where(each.judged.setting),
                "to decide it at 7B to 32B": claim.at_scale,
                "sweep": each.sweep.name,
                "gives it": f"tiercache report {each.sweep.id} --paper {claim.paper}",
            }
        )
    return pd.DataFrame(rows)


def _missing(found: Sequence[Result], paper: str) -> list[dict[str, str]]:
    known = {each.judged.claim.id for each in found}
    return [
        {"claim": claim.id, "what it says": claim.says, "sweeps that decide it": ", ".join(claim.sweeps)}
        for claim in CLAIMS
        if claim.id not in known and paper in (ANY_PAPER, claim.paper)
    ]


def _not_run(found: Sequence[Result], paper: str) -> None:
    missing = _missing(found, paper)
    if missing:
        with st.expander(f"Claims whose cells are not in this selection: {len(missing)}"):
            table = pd.DataFrame(missing)
            st.dataframe(table, hide_index=True, alt="Claims that can't be judged here")
            downloads(table, "claims not judged", key=f"claims not judged {paper}")
            st.text("Each file has a small form for the embedded reasoner, for example:")
            st.code(f"tiercache run sweeps/{missing[0]['sweeps that decide it'].split(',')[0]}_mini.yaml")


def _published(source: data.Source, reads: Sequence[Read], paper: str) -> None:
    options = {
        f"{table.id} @ {each.sweep.id} @ {where(setting)}": (each, setting, table)
        for each, setting, table in tables(reads)
        if paper in (ANY_PAPER, table.paper)
    }
    if not options:
        return
    st.subheader("Published tables beside ours")
    key = choose("Published table", list(options), "published", _short(list(options)))
    each, setting, table = options[key]
    with st.spinner("Comparing …"):
        group = _group(source.key, each.sweep.id, setting.model, setting.benchmark, setting.protocol, setting)
    render(beside(setting, group, table, Sources(each.sweep.id, _url()).of(setting)), "published")


@st.cache_data(max_entries=16, show_spinner=False)
def _group(key: tuple[str, int], sweep_id: str, model: str, benchmark: str, protocol: str, _setting: Setting) -> Group:
    (group,) = compare(_setting.cells, _setting.verdicts, _setting.configs)
    return group


def _protocols(reads: Sequence[Read]) -> None:
    if reads:
        with st.expander("Protocol and machine"):
            for place, each in enumerate(reads):
                st.text(each.sweep.name)
                blocks = protocol(each.sweep, each.settings, Sources(each.sweep.id, _url()), host=True)
                render(blocks, f"protocol {place}")


def _url() -> str:
    """The database as commands name it, without a password."""
    url = default_url()
    return masked(url) if parse_url(url).password else url
