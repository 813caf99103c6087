"""A question read from options, and an answer as plain data."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from jobs.advice.answers import Answer, Candidate
from jobs.advice.budgets import Budget, Room, Share
from jobs.advice.commands import command
from jobs.advice.sentences import sentences
from jobs.capacity import find_shape, read_bytes
from tiercache.capacity import capacity
from tiercache.errors import SpecError
from tiercache.policy import parse_policy


def read_budget(text: str, model: str | None, context: int, prompt: int, rows: int) -> Budget:
    """`0.5`, a share of the full cache's device bytes; or `8GiB`, for `rows` sequences of `context` tokens of a model.

    Raises:
        SpecError: it is neither, or the model is missing. RequestError, ModelError: a size, length or model is wrong.
    """
    try:
        share: float | None = float(text)
    except ValueError:
        share = None
    if share is not None:
        return Share(share)
    size = read_bytes(text, "--budget")
    if model is None:
        raise SpecError("--budget: a size needs a model to plan for; give --on, as `tiercache models` lists it.")
    return room(size, model, context, prompt, rows)


def room(size: int, model: str, context: int, prompt: int, rows: int) -> Room:
    """So many bytes for a model; lengths are checked before any policy is counted."""
    shape = find_shape(model)
    capacity(shape, parse_policy("full"), context, prompt=prompt)
    return Room(size, model, shape, context, prompt, rows)


def as_data(found: Answer, sweeps: Sequence[str], url: str) -> dict[str, Any]:
    """All numbers of an answer as what JSON can hold; shares and losses as shares of 1, sizes in bytes."""
    setting = found.setting
    return {
        "command": command(found, sweeps, url),
        "model": setting.model,
        "benchmark": setting.benchmark,
        "protocol": setting.protocol,
        "budget": str(found.question.budget),
        "loss": found.question.loss,
        "full": None if setting.full is None else _cell(setting.full),
        "candidates": [_candidate(each) for each in found.candidates],
        "sentences": [asdict(each) for each in sentences(found)],
    }


def _cell(cell: Any) -> dict[str, Any]:
    names = ("fingerprint", "policy", "n", "problems", "accuracy", "accuracy_low", "accuracy_high")
    return {name: getattr(cell, name) for name in names}


def _candidate(each: Candidate) -> dict[str, Any]:
    found = each.evidence.found
    return {
        **_cell(each.cell),
        "verdict": each.verdict,
        "why": each.why,
        "device_bytes": each.size.device,
        "device_share": each.size.share,
        "host_bytes": each.size.host,
        "bus_bytes": each.size.bus,
        "margin": None if each.margin is None else asdict(each.margin),
        "gained": found.gained if found else None,
        "lost": found.lost if found else None,
        "p_holds_holm": each.p_holds,
        "p_fails_holm": each.p_fails,
        "problems_needed": each.needed,
    }
