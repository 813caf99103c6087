"""Numbers of the advice as people read them."""

from jobs.advice.answers import Candidate
from jobs.report import bytes_text
from jobs.statistics.margin import Margin

SIZE_KNOBS = ("budget", "hbm", "evict", "packed", "packed_bytes", "packed_bits", "chunk_keep", "read_budget")


def named(label: str) -> str:
    return f"“{label}”"


def points(share: float) -> str:
    """A share of 1 in points, without a minus before nothing."""
    text = f"{100 * share:.1f}"
    return "0.0" if text == "-0.0" else text


def loss(margin: Margin) -> str:
    """The loss with its 95% interval: `0.4 points [-0.2, 1.1]`; below 0 is a gain."""
    return f"{points(-margin.difference)} points [{points(-margin.high)}, {points(-margin.low)}]"


def p_text(value: float | None) -> str:
    return "–" if value is None else "< 0.001" if value < 0.001 else f"{value:.3f}"


def holds_text(found: Candidate) -> str:
    """What it takes: `50.0% of the full cache (225 KiB)`."""
    size = found.size
    if size.device is None:
        return "–"
    taken = bytes_text(round(size.device))
    return taken if size.share is None else f"{100 * size.share:.1f}% of the full cache ({taken})"


def family(label: str) -> str:
    """A label without the settings that say how much is kept: policies of one family differ in these alone."""
    return " ".join(word for word in label.split() if word.partition("=")[0] not in SIZE_KNOBS)


def outcomes(found: Candidate) -> str:
    """What became of its samples, where they aren't right: `56 wrong, 43 cut off`."""
    cell = found.cell
    counts = {"wrong": cell.wrong, "without an answer": cell.no_answer, "cut off at the token limit": cell.truncated}
    told = [f"{100 * count / cell.n:.0f}% {name}" for name, count in counts.items() if count and cell.n]
    return ", ".join(told)
