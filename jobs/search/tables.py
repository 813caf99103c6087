"""The tables of a search's page, and its numbers as text. A value that was not measured is a dash."""

from collections.abc import Iterable
from typing import Any

from jobs.printable import printable
from jobs.search.objective import Measured
from jobs.search.space import CHOICES
from jobs.search.spec import Search
from jobs.search.study import Outcome
from jobs.search.trials import State, Tried
from jobs.search.verdict import Against, Verdict
from jobs.statistics import pass_at_1

SHOWN = 15  # trials
RAN: tuple[State, ...] = ("measured", "screened", "incomplete")
DASH = "–"
FIGURES = "score, % [95%] | KV, % | other, % | cut off, %"


def held_out(outcome: Outcome, verdict: Verdict) -> str:
    """The full cache, the chosen trials and the best of each preset, these by their score."""
    search = outcome.search
    by_label = {each.label: each for each in verdict.against}
    searched = {each.label: each.measured for each in (*outcome.best_rivals, *outcome.chosen)}
    searched[outcome.full.label] = outcome.full
    first = [outcome.full.label, *(each.label for each in outcome.chosen)]
    others = [each.label for each in outcome.best_rivals if each.label not in first]
    others.sort(key=lambda label: -_mean(outcome.held_out[label]))
    lines = [
        f"| policy | {FIGURES} | searched, % | best trial less it, points [95%] | p | p Holm |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for label in (*first, *others):
        against, before = by_label.get(label), searched[label]
        tests = [DASH] * 3
        if against is not None:
            tests = [difference(against), p_text(against.paired.p_value), p_text(against.p_holm)]
        score = percent(before.accuracy) if before is not None and before.samples else DASH
        lines.append(_row([code(label), *_figures(search, outcome.held_out[label]), score, *tests]))
    return "\n".join(lines)


def presets(outcome: Outcome) -> str:
    """All variants on the search's problems, and why some were not run."""
    lines = [f"| preset | {FIGURES} | |", "|---|--:|--:|--:|--:|---|"]
    for each in outcome.rivals:
        lines.append(_row([code(each.label), *_figures(outcome.search, each.measured), _state(each, outcome.search)]))
    return "\n".join(lines)


def trials(outcome: Outcome) -> str:
    """The best trials on the search's problems."""
    ran = [(place, each) for place, each in enumerate(outcome.trials) if each.state in RAN]
    ran.sort(key=lambda pair: (RAN.index(pair[1].state), -_mean(pair[1].measured)))
    lines = [f"| proposal | policy | {FIGURES} | |", "|--:|---|--:|--:|--:|--:|---|"]
    for place, each in ran[:SHOWN]:
        figures = _figures(outcome.search, each.measured)
        lines.append(_row([str(place + 1), code(each.label), *figures, _state(each, outcome.search)]))
    left = len(ran) - SHOWN
    return "\n".join(lines) + (f"\n\n{left} more are in the database." if left > 0 else "")


def space(search: Search) -> str:
    """The values of each knob that were tried."""
    choices = search.choices()
    lines = ["| knob | values |", "|---|---|"]
    lines += [_row([f"`{knob}`", text(", ".join(map(_value, choices[knob])))]) for knob in CHOICES]
    return "\n".join(lines)


def accuracy(measured: Measured) -> str:
    """In per cent, with its 95% interval."""
    if not measured.samples:
        return DASH
    estimate = pass_at_1(measured.scores)
    return f"{percent(estimate.value)} [{percent(estimate.low)}, {percent(estimate.high)}]"


def difference(against: Against) -> str:
    """In points, with its 95% interval."""
    found = against.paired
    return f"{100 * found.difference:+.1f} [{100 * found.low:+.1f}, {100 * found.high:+.1f}]"


def percent(value: float | None) -> str:
    return DASH if value is None else f"{100 * value:.1f}"


def p_text(value: float) -> str:
    return "< 0.0001" if value < 1e-4 else f"{value:.4f}" if value < 0.01 else f"{value:.2f}"


def code(value: str) -> str:
    return f"`{text(value)}`"


def text(value: object) -> str:
    """One line that can leave neither its table cell nor its code span."""
    return printable(" ".join(str(value).split())).replace("|", "/").replace("`", "'")


def _figures(search: Search, measured: Measured | None) -> list[str]:
    """Score, bytes of keys and values, other bytes, share of answers cut off."""
    if measured is None or not measured.samples:
        return [DASH] * 4
    held = measured.bytes
    kept = held.device + (held.host if search.budget.memory == "all" else 0.0)
    return [accuracy(measured), percent(kept), percent(held.beside), percent(measured.cut)]


def _state(tried: Tried, search: Search) -> str:
    if tried.state == "too large":
        return f"not run: holds {percent(tried.planned)}% at least"
    if tried.state == "impossible":
        return text(f"not run: {tried.reason}")
    if tried.measured is None or not tried.measured.samples:
        return "no result"
    if tried.state == "incomplete":
        return f"{tried.measured.expected - len(tried.measured.samples)} samples failed"
    if tried.state == "screened":
        return f"given up after {tried.measured.expected} problems"
    held = tried.measured.held(search.budget.memory == "all")
    return "" if held <= search.budget.bytes else f"holds {percent(held)}%, above the budget"


def _mean(measured: Measured | None) -> float:
    return measured.accuracy if measured is not None and measured.samples else -1.0


def _value(value: Any) -> str:
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"
