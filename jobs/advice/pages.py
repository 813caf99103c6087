"""The page *Which policy?* as Markdown: for each model and benchmark of some sweeps, budget by budget."""

from collections.abc import Iterator, Sequence

from sqlalchemy import Engine

from db.queries import cell_summaries
from jobs.advice.answers import Answer, Candidate, Question, answer
from jobs.advice.budgets import Share
from jobs.advice.commands import command
from jobs.advice.evidence import Setting, settings
from jobs.advice.sentences import Sentence, sentences
from jobs.advice.wording import p_text, points
from jobs.papers.blocks import Block, Bullets, Heading, Paragraph, Table
from jobs.papers.render import markdown
from jobs.report import bytes_text
from tiercache.errors import SpecError

BUDGETS = (0.25, 0.5, 0.75, 0.9, 1.0)
NUMBERS = (1, 2, 3, 4, 5, 6)
COLUMNS = ("policy", "device, % of full", "device", "host", "loss, points [95%]", "n", "p it loses that much")


def advice_markdown(engine: Engine, sweep_ids: Sequence[str], url: str) -> str:
    """The whole page; every number in it is read from the database.

    Args:
        sweep_ids: whose cells are candidates; one that several share counts once.
        url: the database's, which the commands on the page name; a password is masked.

    Raises:
        SpecError: these sweeps have no judged samples.
    """
    cells = [cell for sweep_id in sweep_ids for cell in cell_summaries(engine, sweep_id)]
    found = [setting for setting in settings(engine, cells) if setting.full is not None and setting.others]
    if not found:
        raise SpecError("which policy: these sweeps have no judged samples of a full cache and of another policy.")
    document: list[Block] = [
        Heading(1, "Which policy?"),
        Paragraph(
            "Which KV-cache policies keep the full cache's accuracy at a byte budget, and which to avoid. A policy "
            "keeps it if “it loses the tolerated points or more” is refuted: one-sided at 2.5%, problem by problem "
            "against the full cache (Tango's score test), corrected by Holm over the policies that the budget admits. "
            "It is to be avoided if “it loses no more than that” is refuted. All others can't be decided: the absence "
            "of a difference is never concluded from a large p. Intervals are 95%."
        ),
    ]
    for setting in found:
        document += _setting(setting, sweep_ids, url)
    return markdown(document)


def _setting(setting: Setting, sweep_ids: Sequence[str], url: str) -> Iterator[Block]:
    yield Heading(2, f"{setting.model} on {setting.benchmark} (protocol {setting.protocol[:8]})")
    before, found = 0.0, None
    scale: list[Sentence] = []
    for most in BUDGETS:
        found = answer(setting, Question(Share(most)))
        if len(found.admitted) == before and (before or most < 1):
            continue  # nothing that a smaller budget hasn't said
        said = sentences(found, above=_smaller(most) if before else 0.0)
        before = len(found.admitted)
        scale = [each for each in said if each.kind == "scale"]
        yield Heading(3, f"At most {100 * most:g}% of the full cache's device bytes")
        yield Bullets(tuple(each.text for each in said if each.kind != "scale"))
        yield Paragraph(f"From: {command(found, sweep_ids, url)}")
    if found is not None:
        yield Heading(3, "All policies")
        yield Table(
            (*COLUMNS, "verdict", "cell"), tuple(map(_row, found.candidates)), _sources(found, sweep_ids, url), NUMBERS
        )
    yield from (Paragraph(each.text) for each in scale)


def _smaller(most: float) -> float:
    return max((each for each in BUDGETS if each < most), default=0.0)


def _sources(found: Answer, sweep_ids: Sequence[str], url: str) -> tuple[str, ...]:
    return (f"{command(found, sweep_ids, url)} --json",)


def _row(each: Candidate) -> tuple[str, ...]:
    size, margin = each.size, each.margin
    return (
        each.cell.policy,
        "–" if size.share is None else f"{100 * size.share:.1f}",
        _bytes(size.device),
        _bytes(size.host),
        "–" if margin is None else f"{points(-margin.difference)} [{points(-margin.high)}, {points(-margin.low)}]",
        "–" if margin is None else str(margin.n),
        p_text(each.p_holds),
        each.verdict + (f": {each.why}" if each.why else ""),
        each.cell.fingerprint[:12],
    )


def _bytes(value: float | None) -> str:
    return "–" if value is None else bytes_text(round(value))
