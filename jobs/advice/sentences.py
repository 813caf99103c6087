"""An answer in sentences; each names the cells that it rests on."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from db.queries import CellSummary
from jobs.advice.answers import Answer, Candidate
from jobs.advice.budgets import Room
from jobs.advice.evidence import EMBEDDED
from jobs.advice.wording import family, holds_text, loss, named, outcomes, p_text, points
from jobs.report import bytes_text
from jobs.statistics.margin import POWER, Differences, problems_to_decide

Kind: TypeAlias = Literal["measured", "use", "speed", "beyond", "avoid", "open", "scale"]
MOST = 5  # sentences of one kind; the table has all
CLIFF = 0.1  # of accuracy
CHANGED = (0.02, 0.1)  # shares of problems whose answer changes, for which it is said what a larger model takes


@dataclass(frozen=True)
class Sentence:
    """`cells`: fingerprints of what it rests on, the full cache's first."""

    kind: Kind
    text: str
    cells: tuple[str, ...]


def sentences(found: Answer, above: float = 0.0) -> list[Sentence]:
    """What to use, what is cheapest and fastest, what to avoid and why, and what can't be decided.

    above: leave out policies to avoid that hold no more than this share, because a smaller budget's answer named them.
    """
    said = [
        *_measured(found),
        *_use(found),
        *_speed(found.having("holds")),
        *_beyond(found),
        *_avoid(found, above),
        *_open(found),
        *_scale(found),
    ]
    full = found.setting.full
    first = () if full is None else (full.fingerprint,)
    return [Sentence(kind, text, tuple(dict.fromkeys((*first, *cells)))) for kind, text, cells in said]


Said: TypeAlias = Iterator[tuple[Kind, str, tuple[str, ...]]]


def _measured(found: Answer) -> Said:
    setting, full = found.setting, found.setting.full
    where = f"{setting.model} on {setting.benchmark}"
    if full is None or full.accuracy is None:
        yield "measured", f"{where}: the full cache was not run, so no loss is known. Add “full” to the sweep.", ()
        return
    right = f"{points(full.accuracy)}% [{points(full.accuracy_low or 0)}, {points(full.accuracy_high or 0)}]"
    count, admitted = len(found.candidates), len(found.admitted)
    yield (
        "measured",
        f"{where}: the full cache solves {right} of {full.problems:,} problems. Of {count} other policies {admitted} "
        f"fit {found.question.budget}. A loss of {points(found.question.loss)} points is tolerated.",
        (),
    )
    budget = found.question.budget
    if isinstance(budget, Room):
        whole = budget.rows * budget.context * budget.shape.kv_bytes_per_token()
        fits = "fits, so room alone asks for no policy" if whole <= budget.bytes else "doesn't fit"
        yield "measured", f"The full cache of these rows would take {bytes_text(whole)}: it {fits}.", ()
    if isinstance(budget, Room) and _elsewhere(found):
        yield (
            "measured",
            f"No policy was measured on {budget.model}: bytes below are planned for it, losses are those of "
            f"{setting.model}. Take them as what to try first, and measure.",
            (),
        )


def _elsewhere(found: Answer) -> bool:
    """Whether the bytes are planned for another model than the losses were measured on."""
    budget = found.question.budget
    return isinstance(budget, Room) and budget.model.rsplit("/", 1)[-1] != found.setting.model.rsplit("/", 1)[-1]


def _use(found: Answer) -> Said:
    holding = found.having("holds")
    if not holding:
        return
    best, *others = holding
    act = "Try" if _elsewhere(found) else "Use"
    text = f"{act} {named(best.cell.policy)}: it holds {holds_text(best)}, the least of those that keep the accuracy. "
    yield "use", text + _evidence(best, found) + _host(best, found), (best.cell.fingerprint,)
    for each in others[: MOST - 1]:
        text = f"{named(each.cell.policy)} does as well with {holds_text(each)}. "
        yield "use", text + _evidence(each, found) + _host(each, found), (each.cell.fingerprint,)
    if more := [each.cell for each in others[MOST - 1 :]]:
        yield "use", f"{_count(len(more))} more keep it too, with more bytes.", _keys(more)


def _evidence(each: Candidate, found: Answer) -> str:
    assert each.margin is not None
    same = each.evidence.found is not None and each.evidence.found.squares == 0
    nothing = ", and no verdict differs" if same else ""
    return (
        f"It loses {loss(each.margin)} (n = {each.margin.n:,}{nothing}; a loss of {points(found.question.loss)} "
        f"or more is refuted with p {_p(each.p_holds)}, by Holm)."
    )


def _host(each: Candidate, found: Answer) -> str:
    size, planned = each.size, isinstance(found.question.budget, Room)
    if not size.host:
        return ""
    whose = "for all rows" if planned else "a sequence"
    text = f" It needs {bytes_text(round(size.host))} of host memory {whose}"
    if size.bus:
        text += f", and {bytes_text(round(size.bus))} " + (
            "cross the bus in a step of one sequence" if planned else "were moved between the two for each token"
        )
    return text + "."


def _speed(holding: Sequence[Candidate]) -> Said:
    rates = [(each.cell.decode_tokens_per_s, each.cell) for each in holding if each.cell.decode_tokens_per_s]
    if not rates:
        return
    cells = [cell for _, cell in rates]
    if not all(cell.exclusive for cell in cells):
        text = (
            "Which of these is fastest can't be said: they were measured beside other engines. "
            "“cluster: {alone: true}” in the sweep measures each alone."
        )
    elif len({cell.devices for cell in cells}) > 1:
        text = "Which of these is fastest can't be said: they ran on different devices."
    elif len(rates) == 1:
        text = f"It decodes {rates[0][0]:,.0f} tokens/s on {', '.join(cells[0].devices)}; one rate has no interval."
    else:
        rate, fastest = max(rates, key=lambda pair: pair[0])
        text = (
            f"The fastest of these is {named(fastest.policy)} with {rate:,.0f} tokens/s on "
            f"{', '.join(fastest.devices)}; the slowest has {min(rates, key=lambda pair: pair[0])[0]:,.0f}. One rate a "
            "policy has no interval."
        )
    yield "speed", text, _keys(cells)


def _beyond(found: Answer) -> Said:
    """Where the budget admits nothing that holds: the smallest that does."""
    if found.having("holds") or found.setting.full is None:
        return
    name = str(found.question.budget)
    best = next((each for each in found.beyond if each.verdict == "holds"), None)
    if best is None:
        yield "beyond", f"No policy measured here is shown to keep the accuracy, within {name} or beyond.", ()
        return
    text = f"None within {name} is shown to keep the accuracy. The smallest that is: {named(best.cell.policy)}, with "
    yield "beyond", f"{text}{holds_text(best)}. " + _evidence(best, found) + _host(best, found), _keys([best.cell])


def _avoid(found: Answer, above: float) -> Said:
    bad = [each for each in found.having("loses more") if (each.size.share or 1.0) > above]
    bad.sort(key=lambda each: each.margin.difference if each.margin else 0.0)
    for each in bad[:MOST]:
        assert each.margin is not None
        text = f"Don't use {named(each.cell.policy)}: with {holds_text(each)} it loses {loss(each.margin)}"
        text += f" (n = {each.margin.n:,}; p {_p(each.p_fails)} by Holm)"
        cells = [each.cell]
        if told := outcomes(each):
            text += f": {told}"
        if (better := _relative(each, found)) is not None:
            cliff = "There is a cliff: " if _steep(each, better) else ""
            text += f". {cliff}{named(better.cell.policy)} keeps the accuracy with {holds_text(better)}"
            cells.append(better.cell)
        yield "avoid", text + ".", _keys(cells)
    if more := [each.cell for each in bad[MOST:]]:
        labels = ", ".join(named(cell.policy) for cell in more[: 2 * MOST])
        rest = f" and {len(more) - 2 * MOST} others" if len(more) > 2 * MOST else ""
        yield "avoid", f"Nor {labels}{rest}: each is shown to lose more than is tolerated.", _keys(more)


def _relative(each: Candidate, found: Answer) -> Candidate | None:
    """The smallest of its family that keeps the accuracy with more bytes."""
    mine = family(each.cell.policy)
    return next(
        (
            other
            for other in found.beyond
            if other.verdict == "holds"
            and family(other.cell.policy) == mine
            and (other.size.share or 0) >= (each.size.share or 0)
        ),
        None,
    )


def _steep(worse: Candidate, better: Candidate) -> bool:
    """Accuracy falls at least twice as fast as bytes, and by ten points or more."""
    if worse.margin is None or worse.size.share is None or better.size.share is None:
        return False
    return -worse.margin.difference >= max(CLIFF, 2 * (better.size.share - worse.size.share))


def _open(found: Answer) -> Said:
    undecided = found.having("open")
    for each in undecided[:MOST]:
        assert each.margin is not None
        text = f"{named(each.cell.policy)} can't be decided: it loses {loss(each.margin)} with n = {each.margin.n:,}"
        if each.why:
            text += f", but {each.why}"
        elif each.needed is not None and each.needed > each.margin.n:
            text += f"; about {each.needed:,} problems would decide"
        else:
            text += (
                f"; it is close: a loss of {points(found.question.loss)} isn't refuted, p {_p(each.p_holds)} by Holm"
            )
        yield "open", text + ".", _keys([each.cell])
    if more := [each.cell for each in undecided[MOST:]]:
        yield "open", f"{_count(len(more))} more can't be decided; the table has them.", _keys(more)
    if unknown := [each for each in found.having("not known") if found.setting.full is not None]:
        reasons = "; ".join(dict.fromkeys(each.why for each in unknown))
        count = "one policy" if len(unknown) == 1 else f"{len(unknown)} policies"
        yield "open", f"Nothing is said of {count}: {reasons}.", _keys([each.cell for each in unknown])


def _scale(found: Answer) -> Said:
    full = found.setting.full
    if full is None or found.setting.model.split()[0].rsplit("/", 1)[-1] != EMBEDDED:
        return
    margin = found.question.loss
    needed = [problems_to_decide(Differences(10**6, 0.0, share * 10**6, None, None), margin) for share in CHANGED]
    length = "" if full.output_tokens is None else f" and writes about {full.output_tokens:,.0f} tokens for a problem"
    yield (
        "scale",
        f"All this is true of the embedded reasoner, which has a million parameters{length}. At 7B to 32B run "
        f"sweeps/papers_full.yaml (“tiercache plan” says what it takes). There {points(margin)} points are shown with "
        f"{100 * POWER:.0f}% power by about {needed[0]:,} problems where {100 * CHANGED[0]:g}% of the verdicts differ "
        f"from the full cache's, and by {needed[1]:,} where {100 * CHANGED[1]:g}% do.",
        (),
    )


def _keys(cells: Sequence[CellSummary]) -> tuple[str, ...]:
    return tuple(cell.fingerprint for cell in cells)


def _count(n: int) -> str:
    return "One" if n == 1 else str(n)


def _p(value: float | None) -> str:
    text = p_text(value)
    return text if text.startswith("<") else f"= {text}"
