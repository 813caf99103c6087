"""What the model says of outputs that differ although no token was evicted: the first token, its gap, and float64."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from cluster.work import Done
from cluster.worker import EngineWorker
from db.queries import Generation
from db.writer import Writer
from jobs.grid import Cell
from jobs.papers.proposition import EVENT, Checked, Flip
from jobs.work_queue import CellSamples, WorkQueue
from tiercache import hf
from tiercache.cache import TieredCache
from tiercache.model import LoadedModel
from tiercache.policy import parse_policy
from tiercache.prefill_step import PrefillStep


@dataclass(frozen=True)
class Tie:
    """One problem.

    at               first generated token that differs; None where the texts can't be taken apart into tokens.
    gap              how far apart the two tokens' logits are under the full cache, in the cell's own type.
    same_in_float64  whether both policies give the same tokens there.
    """

    key: str
    problem: str
    repeat: int
    policy: str
    dtype: str
    at: int | None
    gap: float | None
    same_in_float64: bool


def examine(writer: Writer, checked: Sequence[Checked], cells: Sequence[Cell]) -> int:
    """Looks at every flip that nobody has looked at and stores what it finds; returns how many these were."""
    by_name = {cell.fingerprint: cell for cell in cells}
    looked = 0
    for each in checked:
        flips = [flip for flip in each.flips if flip.looked is None]
        cell = by_name.get(each.cell.fingerprint)
        full = by_name.get(flips[0].full.fingerprint) if flips else None
        if cell is None or full is None:
            continue
        for tie in look(cell, full, flips):
            message = f"{tie.policy}, {tie.problem}: token {tie.at}, logit gap {tie.gap}"
            writer.event(each.evidence.sweep.id, EVENT, message, fingerprint=cell.fingerprint, data=asdict(tie))
            looked += 1
    return looked


def look(cell: Cell, full: Cell, flips: Sequence[Flip]) -> list[Tie]:
    """Loads the model in its own type and in float64."""
    keys = {f"{flip.ours.problem_id}#{flip.ours.repeat}" for flip in flips}
    exact = [_run(each, keys) for each in (cell, full)]
    own = _worker(cell, cell.model.dtype).engine.loaded
    found = []
    for flip in flips:
        at, gap = _first_difference(own, flip.ours, flip.theirs)
        key = f"{flip.ours.problem_id}#{flip.ours.repeat}"
        found.append(
            Tie(
                key=flip.key,
                problem=flip.ours.problem_id,
                repeat=flip.ours.repeat,
                policy=cell.policy.label,
                dtype=str(own.geometry.dtype).removeprefix("torch."),
                at=at,
                gap=gap,
                same_in_float64=exact[0].get(key) is not None and exact[0].get(key) == exact[1].get(key),
            )
        )
    return found


def _worker(cell: Cell, dtype: Any) -> EngineWorker:
    model = cell.model.model_copy(update={"dtype": dtype})
    return EngineWorker(model, "cpu", 64, None, cell.engine.prefill_chunk, None)


def _run(cell: Cell, keys: set[str]) -> dict[str, tuple[int, ...]]:
    """The tokens of these samples in float64."""
    every = CellSamples(cell, range(cell.samples))
    wanted = [place for place, sample in enumerate(every) if sample.key in keys]
    shard = WorkQueue([CellSamples(cell, wanted)], max(1, len(wanted)), 1).next_shard()
    items = _worker(cell, "float64").run(shard)
    return {item.key: item.completion.tokens for item in items if isinstance(item, Done)}


def _first_difference(loaded: LoadedModel, ours: Generation, theirs: Generation) -> tuple[int | None, float | None]:
    prompt = _ids(loaded, ours.prompt)
    both = [_generated(loaded, each, len(prompt)) for each in (ours, theirs)]
    if both[0] is None or both[1] is None:
        return None, None
    pairs = enumerate(zip(*both, strict=False))
    at = next((place for place, (one, other) in pairs if one != other), None)
    if at is None:
        return None, None
    return at, _gap(loaded, [*prompt, *both[1][:at]], both[0][at], both[1][at])


def _ids(loaded: LoadedModel, text: str) -> list[int]:
    return loaded.encode(text)[1]


def _generated(loaded: LoadedModel, sample: Generation, start: int) -> list[int] | None:
    """The generated tokens, with the end token; None where the tokenizer spells the text in another way."""
    tokens = _ids(loaded, f"{sample.prompt} {sample.output}")[start:]
    if "".join(loaded.decode(tokens).split()) != "".join(sample.output.split()):
        return None
    return [*tokens, min(loaded.eos)] if sample.finish_reason == "eos" else tokens


@torch.inference_mode()
def _gap(loaded: LoadedModel, prefix: Sequence[int], one: int, other: int) -> float:
    """How far apart two tokens' logits are after `prefix`, with everything visible."""
    cache = TieredCache(loaded.geometry, parse_policy("full"), loaded.device)
    rows = cache.join([len(prefix)], [0])
    step = PrefillStep(cache, rows, 0, [len(prefix)], len(prefix))
    positions = torch.arange(len(prefix)).unsqueeze(0)
    hidden = hf.hidden_states(loaded.model, torch.tensor([list(prefix)]), positions, step)
    logits = hf.logits(loaded.model, hidden[:, -1])[0]
    return float((logits[one] - logits[other]).abs())
