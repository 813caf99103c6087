"""The parts of a report as blocks: verdicts, protocol, a setting's tables, and the tests of each claim."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from db.queries import SweepInfo
from jobs.compare_report import p_text
from jobs.papers.blocks import Block, Bullets, Heading, Paragraph, Table
from jobs.papers.judging import Finding, Judged
from jobs.papers.kinds import ARXIV, Published
from jobs.papers.settings import Setting
from jobs.papers.sources import SUMMARIES, SWEEPS, TESTS, Sources
from jobs.papers.tables import beside, grid, own, percent, points

STAND_IN = (
    "A verdict on the chain benchmark is one on the embedded reasoner, a model of a million parameters. It says "
    "whether the mechanism does what is claimed of it there, not whether the claim holds at 7B to 32B."
)


def where(setting: Setting) -> str:
    return f"{setting.model} on {setting.benchmark}"


def verdict_table(results: Sequence[Judged]) -> Iterator[Block]:
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
            where(each.setting),
            each.verdict,
        )
        for each in results
    )
    columns = ("claim", "whose", "what it says", "published", "judged on", "verdict")
    yield Table(columns, rows, ("the tests below, by the rule in jobs/papers/verdicts.py",))
    if any(each.setting.data == "chain" for each in results):
        yield Paragraph(STAND_IN)


def protocol(sweep: SweepInfo, found: Sequence[Setting], source: Sources, *, host: bool) -> Iterator[Block]:
    """`host`: name the machine too; not on pages that others read."""
    yield Heading(2, "Protocol")
    rows = tuple(_protocol_row(setting, sweep.spec) for setting in found if not setting.tasks)
    columns = ("model", "model revision", "benchmark", "data revision", "sampling", "seed", "problems", "repeats")
    yield Table((*columns, "protocol"), rows, (source.configs, source.export), queries=SWEEPS)
    devices = dict.fromkeys(device for setting in found for cell in setting.cells for device in cell.devices)
    environment = sweep.environment
    versions = environment.get("versions") or {}
    machine = (
        *((("host", environment.get("host", "–")),) if host else ()),
        ("platform", environment.get("platform", "–")),
        ("devices", ", ".join(devices) or "–"),
        ("python", environment.get("python", "–")),
        ("versions", ", ".join(f"{name} {version}" for name, version in versions.items()) or "–"),
        ("engine", _flat(sweep.spec.get("engine") or {})),
    )
    lines = tuple((name, str(value)) for name, value in machine)
    yield Table(("machine", ""), lines, ("db.queries.list_sweeps(engine): environment, spec",), queries=SWEEPS)


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


def setting_section(
    setting: Setting, source: Sources, published: Sequence[Published], heading: str = ""
) -> Iterator[Block]:
    """Our table, the published ones beside it as far as they apply, and the tests of a hierarchy's grid."""
    group = setting.group
    yield Heading(2, heading or where(setting))
    yield from own(setting, group, source.of(setting))
    for table in published:
        yield from beside(setting, group, table, source.of(setting))
    for name, found in group.grids:
        yield from grid(name, found, source.of(setting))


def details(result: Judged, source: Sources) -> Iterator[Block]:
    """The tests of one claim."""
    yield Heading(3, f"{result.claim.id} on {where(result.setting)}: {result.verdict}")
    yield Paragraph(f"{result.claim.says} Published: {result.claim.published}.")
    columns = ("difference of", "expected", "first, %", "second, %", "difference, points [95%]", "p (Holm)", "problems")
    sources = dict.fromkeys(name for finding in result.findings for name in source.finding(result.setting, finding))
    queries = tuple(dict.fromkeys(name for each in result.findings for name in (TESTS if each.found else SUMMARIES)))
    rows = tuple(_finding(finding) for finding in result.findings)
    headed = (*columns, "smallest effect, points", "verdict")
    yield Table(headed, rows, tuple(sources), (2, 3, 4, 5, 6, 7), queries)
    notes = [note for finding in result.findings for note in _notes(finding)]
    yield Bullets((*dict.fromkeys(notes), f"At the paper's size: {result.claim.at_scale}."))


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
