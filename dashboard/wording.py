"""Numbers and names as people read them."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence

EMPTY_HINT = "tiercache run sweeps/demo.yaml"
UNMEASURED = "not measured"
NO_NAME = "<extra></extra>"  # plotly else writes the trace's name beside its hover text
OUTCOME_NAMES = {
    "correct": "correct",
    "wrong": "wrong",
    "no_answer": "no answer",
    "truncated": "truncated",
    "failed": "failed",
}


def dash(reason: str = UNMEASURED) -> str:
    """Return what stands where a value is missing."""
    return f"– ({reason})"


def human_bytes(count: float | None, reason: str = UNMEASURED) -> str:
    """Return bytes in binary units, e.g. 1.5 KiB; None is a dash with the reason."""
    if count is None:
        return dash(reason)
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    unit = 0
    while abs(count) >= 1024 and unit < len(units) - 1:
        count /= 1024
        unit += 1
    return f"{count:.0f} B" if unit == 0 else f"{count:.1f} {units[unit]}"


def byte_unit(largest: float) -> tuple[float, str]:
    """Return (divisor, unit) in which an axis that reaches `largest` bytes has readable ticks."""
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if largest >= 1024**power:
            return float(1024**power), unit
    return 1.0, "B"


def percent(share: float | None, digits: int = 1, reason: str = UNMEASURED) -> str:
    """Return a share as a percentage; None is a dash with the reason."""
    return dash(reason) if share is None else f"{share:.{digits}%}"


def signed(share: float) -> str:
    """Return a difference of shares in percentage points, with its sign."""
    return f"{100 * share:+.1f} pp"


def number(value: float | None, unit: str, digits: int = 1, reason: str = UNMEASURED) -> str:
    """Return a number with its unit; None is a dash with the reason."""
    return dash(reason) if value is None else f"{value:,.{digits}f} {unit}"


def plain(text: str) -> str:
    """Return text that plotly, which reads a little HTML, shows as it is."""
    return html.escape(text, quote=False)


def ellipsised(label: str, width: int = 38) -> str:
    """Return a label of at most `width` characters, as `plain`: what is too long loses its middle."""
    if len(label) > width:
        tail = width // 3
        label = f"{label[: width - tail - 1]}…{label[-tail:]}"
    return plain(label)


def shortened(labels: Sequence[str], width: int = 38) -> list[str]:
    """Return `ellipsised` labels. Of those that would read alike, the settings that tell them apart are kept."""
    alike: dict[str, set[str]] = {}
    for label in labels:
        alike.setdefault(ellipsised(label, width), set()).add(label)
    families: dict[str, list[set[str]]] = {}  # the words of labels that would read like another, by their first
    for label in {each for group in alike.values() if len(group) > 1 for each in group}:
        families.setdefault(label.partition(" ")[0], []).append(set(label.split()))
    shared = {first: set.intersection(*words) for first, words in families.items()}
    return [
        ellipsised(_telling(label, shared) if len(alike[ellipsised(label, width)]) > 1 else label, width)
        for label in labels
    ]


def _telling(label: str, shared: Mapping[str, set[str]]) -> str:
    """Leave out the words that all such labels share, but the first."""
    first, *rest = label.split()
    return " ".join([first, "…", *(word for word in rest if word not in shared[first])])


def hover(lines: Iterable[str]) -> str:
    """Return the text of a mark: as a template in which nothing but our own lines is filled in."""
    return "<br>".join(lines).replace("%{", "% {") + NO_NAME
