"""Why samples failed, in as few words as there are reasons: the same refusal of a thousand prompts is one."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from db.queries import FailedSample

GIVEN_UP = "given up after"  # begins the reason of a sample that was tried and lost; any other was refused
SHOWN = 5
LONGEST = 240  # characters of a reason under a table


@dataclass(frozen=True)
class Reason:
    """A reason in the words of its first sample, which is the example; how many samples of how many cells share it."""

    text: str
    samples: int
    cells: int
    example: FailedSample

    @property
    def refused(self) -> bool:
        """Whether the sample can't be run as asked: trying again alone would not help."""
        return not self.text.startswith(GIVEN_UP)


def reasons(failed: Sequence[FailedSample]) -> list[Reason]:
    """The distinct reasons, the most frequent first."""
    groups: dict[str, list[FailedSample]] = {}
    for sample in failed:
        groups.setdefault(_alike(sample), []).append(sample)
    found = [
        Reason(_text(group[0]), len(group), len({sample.fingerprint for sample in group}), group[0])
        for group in groups.values()
    ]
    return sorted(found, key=lambda reason: -reason.samples)


def reason_lines(found: Sequence[Reason]) -> list[str]:
    """What stands under a table: at most `SHOWN` reasons with their counts and an example each."""
    if not found:
        return []
    lines = [f"failed: {sum(reason.samples for reason in found)}"]
    for reason in found[:SHOWN]:
        sample = reason.example
        cells = f"{reason.cells} cells, for example " if reason.cells > 1 else ""
        text = reason.text if len(reason.text) <= LONGEST else reason.text[: LONGEST - 1] + "…"
        lines.append(f"{reason.samples:>5} × {text}")
        lines.append(f"        in {cells}{sample.model} · {sample.benchmark} · {sample.policy}: {sample.problem_id}")
    if len(found) > SHOWN:
        lines.append(f"        and {len(found) - SHOWN} other reasons; `tiercache export` has them all.")
    return lines


def advice(failed: int, found: Sequence[Reason]) -> str:
    """What to do about this many failed samples: only those that were not refused may succeed as they are."""
    refused = min(failed, sum(reason.samples for reason in found if reason.refused))
    lost = failed - refused
    parts = [f"{_samples(lost)} failed; re-issue the command to try again."] if lost else []
    if refused:
        again = "as things are it would refuse again. Once the cause is removed, the same command tries again."
        parts.append(f"{_samples(refused)} failed because the engine refused; {again}")
    return " ".join(parts)


def _samples(count: int) -> str:
    return "1 sample" if count == 1 else f"{count} samples"


def _text(sample: FailedSample) -> str:
    """The reason's first line, without the sample's own key, which each reason of the engine begins with."""
    first = next((line.strip() for line in sample.error.splitlines() if line.strip()), sample.error)
    return first.removeprefix(f"{sample.problem_id}#{sample.repeat}: ")


def _alike(sample: FailedSample) -> str:
    """Reasons that differ only in numbers, in the sample or in the policy that they name are one."""
    text = _text(sample).replace(sample.policy, "").replace(f"{sample.problem_id}#{sample.repeat}", "")
    return re.sub(r"\d[\d,.]*", "0", text)
