"""What a database says to the papers' claims: the document of `tiercache report`, built from the read queries alone."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Engine

from db.connection import masked
from db.queries import SweepInfo, cell_configs, cell_summaries
from db.scores import verdicts
from jobs.compare import compare
from jobs.compare_report import p_text
from jobs.papers.blocks import Block, Bullets, Heading, Paragraph, Table
from jobs.papers.claims import CLAIMS, PUBLISHED
from jobs.papers.judging import Finding, Judged, judged
from jobs.papers.kinds import ARXIV, Claim, Paper
from jobs.papers.settings import Setting, settings
from jobs.papers.tables import beside, grid, own, percent, points
from tiercache.errors import SpecError


def build(engine: Engine, sweep: SweepInfo, url: str, paper: Paper | None = None) -> list[Block]:
    """The document of one sweep, as far as it is judged.

    Args:
        url: the database's, which the commands in the document name; a password is masked.
        paper: only its claims and tables.

    Raises:
        SpecError: the sweep has no judged samples, or no cells of that paper's claims.
    """
    configs = {fingerprint: config for fingerprint, (_, config) in cell_configs(engine, sweep.id).items()}
    found = settings(cell_summaries(engine, sweep.id), verdicts(engine, sweep.id), configs)
    if not found:
        raise SpecError(f"sweep '{sweep.name}' has no judged samples yet; run it, then ask for its report again.")
    claims = [claim for claim in CLAIMS if paper in (None, claim.paper)]
    results = [result for claim in claims for setting in found if (result := judged(claim, setting)) is not None]
    if paper is not None and not results:
        files = sorted({name for claim in claims for name in claim.sweeps})
        raise SpecError(
            f"--paper {paper}: no claim of it can be judged on the cells of '{sweep.name}'. Those that decide them: "
            f"{', '.join(files)}, each with a _mini form for the embedded reasoner."
        )
    source = _Sources(sweep.id, masked(url))
    document: list[Block] = [
        Heading(1, f"{sweep.name} beside the papers"),
        Paragraph(
            f"Sweep {sweep.id}, {sweep.created_at:%Y-%m-%d %H:%M} UTC, {sweep.done} of {sweep.expected} samples done, "
            f"{sweep.failed} failed. Everything here but the published numbers is read from the database; under each "
            "table stands what gives it. How verdicts are made: docs/papers.md."
        ),
    ]
    document += _verdicts(results)
    document += _elsewhere(claims, results)
    document += _protocol(sweep, found, source)
    for setting in found:
        document += _setting(setting, source, paper)
    document += _details(results, source)
    return document


class _Sources:
    """Commands and queries that give the numbers."""

    def __init__(self, sweep_id: str, url: str) -> None:
        self._end = f"{shlex.quote(sweep_id)} --db {shlex.quote(url)}"
        self.export = f"tiercache export {self._end} --format json"
        self.compare = f"tiercache compare {self._end} --json"
        self.report = f"tiercache report {self._end}"

    def against(self, label: str) -> str:
        return f"{self.compare} --baseline {shlex.quote(label)}"

    def of(self, setting: Setting) -> str:
        return f"{self.report} (problems of {setting.tasks} tasks together)" if setting.tasks else self.compare


def _where(setting: Setting) -> str:
    return f"{setting.model} on {setting.benchmark}"


def _verdicts(results: Sequence[Judged]) -> Iterator[Block]:
    yield Heading(2, "Verdicts")
    if not results:
        yield Paragraph("This sweep has no cells that decide a claim of the papers.")
        return
    rows = tuple(
        (
            each.claim.id,
            f"arXiv {ARXIV[each.claim.paper]}" if each.claim.whose == "paper" else "our question",
            each.claim.says,
            each.claim.published,
            _where(each.setting),
            each.verdict,
        )
        for each in results
    )
    columns = ("claim", "whose", "what it says", "published", "judged on", "verdict")
    yield Table(columns, rows, ("the tests below, by the rule in jobs/papers/verdicts.py",))
    if any(each.setting.data == "chain" for each in results):
        yield Paragraph(
            "A verdict on the chain benchmark is one on the embedded reasoner, a model of a million parameters. It "
            "says whether the mechanism does what is claimed of it there, not whether the claim holds at 7B to 32B."
        )


def _elsewhere(claims: Sequence[Claim], results: Sequence[Judged]) -> Iterator[Block]:
    papers = {each.claim.paper for each in results}
    open_ = [c for c in claims if c.paper in papers and c.id not in {each.claim.id for each in results}]
    if open_:
        yield Paragraph("Claims that other sweeps decide:")
        yield Bullets(tuple(f"{claim.id}: {', '.join(claim.sweeps)}" for claim in open_))


def _protocol(sweep: SweepInfo, found: Sequence[Setting], source: _Sources) -> Iterator[Block]:
    yield Heading(2, "Protocol")
    rows = []
    for setting in found:
        if not setting.tasks:
            rows.append(_protocol_row(setting, sweep.spec))
    columns = ("model", "model revision", "benchmark", "data revision", "sampling", "seed", "problems", "repeats")
    yield Table((*columns, "protocol"), tuple(rows), (f"db.queries.cell_configs(engine, {sweep.id!r})", source.export))
    devices = dict.fromkeys(device for setting in found for cell in setting.cells for device in cell.devices)
    environment = sweep.environment
    versions = environment.get("versions") or {}
    machine = (
        ("host", environment.get("host", "–")),
        ("platform", environment.get("platform", "–")),
        ("devices", ", ".join(devices) or "–"),
        ("python", environment.get("python", "–")),
        ("versions", ", ".join(f"{name} {version}" for name, version in versions.items()) or "–"),
        ("engine", _flat(sweep.spec.get("engine") or {})),
    )
    rows_ = tuple((name, str(value)) for name, value in machine)
    yield Table(("machine", ""), rows_, ("db.queries.list_sweeps(engine): environment, spec",))


def _protocol_row(setting: Setting, spec: Mapping[str, Any]) -> tuple[str, ...]:
    config = setting.config
    model, benchmark = config.get("model") or {}, config.get("benchmark") or {}
    problems = sorted({cell.problems for cell in setting.cells})
    return (
        f"{model.get('id', setting.model)} ({model.get('dtype', 'auto')})",
        str(model.get("revision", "–")),
        _flat({k: v for k, v in benchmark.items() if k not in ("revision", "name") and v is not None}, setting.data),
        str(benchmark.get("revision", "–")),
        _flat(config.get("sampling") or {}),
        str(config.get("seed", "–")),
        " to ".join(map(str, dict.fromkeys((problems[0], problems[-1])))),
        str(spec.get("repeats", 1)),
        setting.protocol[:8],
    )


def _flat(values: Mapping[str, Any], first: str = "") -> str:
    return " ".join(filter(None, (first, *(f"{name}={value}" for name, value in values.items())))) or "–"


def _setting(setting: Setting, source: _Sources, paper: Paper | None) -> Iterator[Block]:
    (group,) = compare(setting.cells, setting.verdicts, setting.configs)
    yield Heading(2, _where(setting))
    yield from own(setting, group, source.of(setting))
    for table in PUBLISHED:
        if paper in (None, table.paper):
            yield from beside(setting, group, table, source.of(setting))
    for name, found in group.grids:
        yield from grid(name, found, source.of(setting))


def _details(results: Sequence[Judged], source: _Sources) -> Iterator[Block]:
    if results:
        yield Heading(2, "Tests of each claim")
    columns = ("difference of", "expected", "first, %", "second, %", "difference, points [95%]", "p (Holm)", "problems")
    for each in results:
        yield Heading(3, f"{each.claim.id} on {_where(each.setting)}: {each.verdict}")
        yield Paragraph(f"{each.claim.says} Published: {each.claim.published}.")
        sources = dict.fromkeys(name for finding in each.findings for name in _sources(each.setting, finding, source))
        rows = tuple(_finding(finding) for finding in each.findings)
        yield Table((*columns, "smallest effect, points", "verdict"), rows, tuple(sources), (2, 3, 4, 5, 6, 7))
        notes = [note for finding in each.findings for note in _notes(finding)]
        yield Bullets((*dict.fromkeys(notes), f"At the paper's size: {each.claim.at_scale}."))


def _sources(setting: Setting, finding: Finding, source: _Sources) -> tuple[str, ...]:
    if setting.tasks:
        return (source.of(setting),)
    if finding.found is None:
        return (source.export,)
    if finding.baseline is not None:
        return (source.against(finding.baseline),)
    return source.compare, source.report  # the slope's test; the difference between the outer levels


def _finding(finding: Finding) -> tuple[str, ...]:
    if finding.found is None:
        return finding.what, finding.says, "–", "–", "–", "–", "–", "–", finding.verdict
    found, margin = finding.found, f"{100 * finding.margin:.1f} points"
    expected = (
        f"{finding.expected} {margin}" if "loses" in str(finding.expected) else f"{finding.expected} (by {margin})"
    )
    return (
        finding.what,
        expected,
        percent(found.first),
        percent(found.second),
        points(found.value, found.low, found.high),
        p_text(found.p),
        str(finding.n),
        percent(finding.shown),
        finding.verdict,
    )


def _notes(finding: Finding) -> Iterator[str]:
    if finding.found is None:
        return
    yield f"p: {finding.test}, two-sided"
    if finding.says:
        yield f"{finding.what}: {finding.says}"
    elif finding.verdict == "can't be decided with this n" and finding.shown is not None:
        needed = f"; about {finding.needed:,} problems show {100 * finding.margin:.1f}" if finding.needed else ""
        yield (
            f"{finding.what}: {finding.n} problems can show a difference of {100 * finding.shown:.1f} points or more "
            f"(80% power){needed}"
        )
