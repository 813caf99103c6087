"""Proposition 1 of 2605.09490 on stored generations: where nothing is evicted, tiers change no output.

Two correct float32 kernels round differently, so a near-tie between two tokens may flip. Each problem whose output
differs is looked at once with the model (`jobs.papers.ties`), and what was found is an event of the sweep.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Engine

from db.queries import CellSummary, Generation, list_events, stored_generations
from jobs.papers.evidence import Evidence
from jobs.papers.settings import Setting

EVENT = "near_tie"
EVENTS_READ = 10_000
TINY_GAP = 1e-3  # logits; rounding of a float32 sum of this length stays far below


@dataclass(frozen=True)
class Flip:
    """One problem whose output isn't the full cache's.

    looked  what the model said of it (see `jobs.papers.ties.Tie`), or None while nobody has asked.
    """

    cell: CellSummary
    full: CellSummary
    ours: Generation
    theirs: Generation
    looked: Mapping[str, Any] | None

    @property
    def key(self) -> str:
        """Changes with either output: what was found of other texts doesn't count."""
        text = "\0".join((self.cell.fingerprint, self.ours.problem_id, self.ours.output, self.theirs.output))
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:20]

    @property
    def explained(self) -> bool:
        """A near-tie in float32 that is no difference in float64."""
        if self.looked is None:
            return False
        gap = self.looked.get("gap")
        return bool(self.looked.get("same_in_float64")) and gap is not None and gap <= TINY_GAP


@dataclass(frozen=True)
class Checked:
    """One setting in which tiers keep all tokens, against the full cache: every problem and repeat that both have."""

    evidence: Evidence
    cell: CellSummary
    compared: int
    flips: tuple[Flip, ...]


def keeps_all(policy: Mapping[str, Any]) -> bool:
    """Whether a policy's configuration moves tokens to the host, yet evicts, quantises and skips none."""
    placement, storage = policy.get("placement") or {}, policy.get("storage") or {}
    reading = policy.get("reading") or {}
    loses = ("budget", "evict", "packed", "packed_bytes", "chunk", "segment")
    return (
        not any(placement.get(knob) for knob in loses)
        and not reading.get("pages")
        and storage.get("positions") == "true"
        and placement.get("hbm", 1.0) < 1.0
    )


def check(engine: Engine, evidence: Mapping[str, Evidence]) -> list[Checked]:
    """Each cell that keeps all tokens once, whichever sweeps share it."""
    found: dict[str, Checked] = {}
    for each in evidence.values():
        for setting in each.settings:
            for cell in () if setting.tasks else setting.cells:
                if cell.fingerprint not in found and keeps_all(setting.policy(cell)):
                    checked = _compare(engine, each, setting, cell)
                    found |= {cell.fingerprint: checked} if checked is not None else {}
    return list(found.values())


def _compare(engine: Engine, evidence: Evidence, setting: Setting, cell: CellSummary) -> Checked | None:
    full = next((each for each in setting.cells if each.policy_name == "full"), None)
    if full is None:
        return None
    theirs = {(one.problem_id, one.repeat): one for one in stored_generations(engine, full.fingerprint)}
    looked = {
        event.data.get("key"): event.data
        for event in list_events(engine, evidence.sweep.id, EVENTS_READ)
        if event.kind == EVENT
    }
    compared, flips = 0, []
    for ours in stored_generations(engine, cell.fingerprint):
        other = theirs.get((ours.problem_id, ours.repeat))
        if other is None:
            continue
        compared += 1
        if (ours.output, ours.finish_reason) != (other.output, other.finish_reason):
            flip = Flip(cell, full, ours, other, None)
            flips.append(Flip(cell, full, ours, other, looked.get(flip.key)))
    return Checked(evidence, cell, compared, tuple(flips))
