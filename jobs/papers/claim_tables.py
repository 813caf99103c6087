"""Claims as a table: what each says, what this database says to it, and what it takes at the paper's size."""

from collections.abc import Iterator, Mapping, Sequence

from jobs.compare_report import p_text
from jobs.papers.blocks import Table
from jobs.papers.evidence import Answer
from jobs.papers.judging import Finding
from jobs.papers.kinds import Claim
from jobs.papers.sources import SUMMARIES, TESTS
from jobs.papers.tables import points

COLUMNS = ("claim", "what it says", "published", "verdict at this scale", "problems", "difference, points [95%]")
NO_CELLS = "not run: this database lacks its cells"


def claim_table(claims: Sequence[Claim], answers: Mapping[str, Answer]) -> Iterator[Table]:
    """Every claim has a row; one that isn't answered says why."""
    rows = tuple(_row(claim, answers.get(claim.id)) for claim in claims)
    sources = dict.fromkeys(each.evidence.source.report for claim in claims if (each := answers.get(claim.id)))
    columns = (*COLUMNS, "p (Holm)", "to decide it at 7B to 32B")
    yield Table(columns, rows, tuple(sources), (4,), (*TESTS, *SUMMARIES))


def _row(claim: Claim, found: Answer | None) -> tuple[str, ...]:
    start = (claim.id, claim.says, claim.published)
    if found is None:
        return (*start, NO_CELLS, "–", "–", "–", claim.at_scale)
    findings = found.judged.findings
    counts = dict.fromkeys(str(each.n) for each in findings if each.found is not None)
    differences = "; ".join(map(_difference, findings))
    tests = "; ".join(p_text(each.found.p) if each.found else "–" for each in findings)
    return (*start, _verdict(found), ", ".join(counts) or "–", differences, tests, claim.at_scale)


def _verdict(found: Answer) -> str:
    """With the reason, where nothing could be decided."""
    findings = found.judged.findings
    reasons = dict.fromkeys(_why(each) for each in findings if each.verdict == found.judged.verdict)
    said = [reason for reason in reasons if reason]
    return found.judged.verdict + (f" ({'; '.join(said)})" if said else "")


def _why(finding: Finding) -> str:
    if not finding.verdict.startswith("can't"):
        return ""
    if finding.found is None:
        return "a rate on a CPU, without an interval" if finding.what.startswith("decode rate") else finding.says
    if finding.says:
        return "both at the floor" if "floor" in finding.says else "both at the ceiling"
    return f"about {finding.needed:,} problems show {100 * finding.margin:.1f} points" if finding.needed else ""


def _difference(finding: Finding) -> str:
    """Of several tests each says what it compares."""
    if finding.found is None:
        return f"{finding.what}: {finding.says}"
    found = finding.found
    return f"{finding.what}: {points(found.value, found.low, found.high)}"
