"""What must fail, found before anything is started or written: the same checks as the engine's, on the shapes alone.

A cell is refused only if every one of its samples would be; where some would run, the rest is worth a note.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jobs.grid import Cell
from jobs.plan import longest_context, sequence_bytes
from jobs.prompts import chat_refusal, count_tokens, estimate_tokens, lacks_chat_template
from tiercache.errors import SpecError
from tiercache.shapes import ELEMENT_BYTES, ModelShape, locate, shape_of

NAMED = 3  # policies named in a message


@dataclass(frozen=True)
class _Group:
    """Cells that differ in their policy alone, and the tokens of their prompts: exact, or None and an estimate."""

    cells: Sequence[Cell]
    lengths: Sequence[int] | None
    estimate: int  # of the longest prompt

    @property
    def name(self) -> str:
        return f"{self.cells[0].model.name} on {self.cells[0].benchmark.label}"

    @property
    def new(self) -> int:
        return self.cells[0].sampling.max_new_tokens

    @property
    def shortest(self) -> int:
        return min(self.lengths) if self.lengths else 1

    @property
    def longest(self) -> int:
        return max(self.lengths) if self.lengths else self.estimate

    @property
    def prompts(self) -> str:
        """The shortest prompt in words, as far as it is known."""
        name = self.cells[0].benchmark.label
        return f"the prompts of {name}, {self.shortest:,} tokens or more," if self.lengths else f"any prompt of {name}"


def foresee(cells: Sequence[Cell]) -> list[str]:
    """Notes on samples of these cells that won't run.

    Raises:
        SpecError: not one sample of some cell can; a line for each cause.
    """
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(cell.protocol, []).append(cell)
    refusals, notes = list[str](), list[str]()
    for group in groups.values():
        place = locate(group[0].model)
        _chat(group[0], place, refusals)
        shape = shape_of(group[0].model)
        if shape is not None:
            measured = _measure(group, place)
            _context(measured, shape, refusals, notes)
            _budget(measured, shape, _dtype(group[0], place), refusals, notes)
    if refusals:
        raise SpecError("\n".join(dict.fromkeys(refusals)))
    return list(dict.fromkeys(notes))


def _chat(cell: Cell, place: Path | None, refusals: list[str]) -> None:
    if cell.benchmark.prompt_mode == "chat" and lacks_chat_template(cell.model, place):
        refusals.append(chat_refusal(cell.model.name, cell.benchmark.name))


def _measure(cells: Sequence[Cell], place: Path | None) -> _Group:
    benchmark = cells[0].benchmark
    texts = [problem.prompt for problem in benchmark.load()]
    # A chat's special tokens come from its template, which only makes a prompt longer.
    lengths = count_tokens(place, texts, special=benchmark.prompt_mode == "raw")
    return _Group(cells, lengths, estimate_tokens(max(map(len, texts))))


def _context(group: _Group, shape: ModelShape, refusals: list[str], notes: list[str]) -> None:
    certain, limit, new = shape.max_context, longest_context(shape), group.new
    if certain is not None and group.shortest + new > certain:
        refusals.append(
            f"sampling.max_new_tokens: {new:,} with {group.prompts} exceeds the {certain:,} tokens that "
            f"{group.cells[0].model.name} can take; {_allowed(group, certain)} take a model with a longer context."
        )
    elif limit is not None and group.longest + new > limit:
        notes.append(
            f"{group.name}: {_share(group, limit)} with max_new_tokens {new:,} exceed its {limit:,} tokens; "
            "such samples fail. Lower sampling.max_new_tokens."
        )


def _allowed(group: _Group, context: int) -> str:
    """How many new tokens there is room for, beside the longest prompt if that fits."""
    if not group.lengths:
        return f"allowed: fewer than {context:,} less the prompt's tokens. Lower it, or"
    room = context - (group.longest if group.longest < context else group.shortest)
    chat = " less the chat template's tokens" if group.cells[0].benchmark.prompt_mode == "chat" else ""
    return f"allowed: at most {room:,}{chat}. Lower it, or" if room > 0 else "no value is small enough:"


def _share(group: _Group, limit: int) -> str:
    if group.lengths is None:
        return "the longest prompts, by estimate,"
    over = sum(tokens + group.new > limit for tokens in group.lengths)
    return f"{over:,} of {len(group.lengths):,} prompts"


def _budget(group: _Group, shape: ModelShape, dtype: str, refusals: list[str], notes: list[str]) -> None:
    budget = group.cells[0].engine.hbm_kv_budget
    if budget is None:
        return

    def need(cell: Cell, prompt: int) -> int:
        return sequence_bytes(cell.policy, shape, dtype, prompt, group.new).device

    short = [cell for cell in group.cells if need(cell, group.longest) > budget]
    none = [cell for cell in short if need(cell, group.shortest) > budget]
    some = [cell for cell in short if cell not in none]
    if none:
        most = max(need(cell, group.longest) for cell in none)
        refusals.append(
            f"engine.hbm_kv_budget: {budget:,} bytes hold no sequence of {group.name} under {_policies(none)} "
            f"({group.shortest:,} prompt tokens or more, {group.new:,} new at most); allowed: {most:,} or more, or "
            "null for no limit. Raise it, lower sampling.max_new_tokens, or leave these policies out."
        )
    if some:
        notes.append(
            f"{group.name}: its longest sequences need more than the {budget:,} bytes of hbm_kv_budget under "
            f"{_policies(some)}; such samples fail."
        )


def _policies(cells: Sequence[Cell]) -> str:
    names = ", ".join(f"'{cell.policy.label}'" for cell in cells[:NAMED])
    return names if len(cells) <= NAMED else f"{names} and {len(cells) - NAMED} more"


def _dtype(cell: Cell, place: Path | None) -> str:
    """The type that the model will be loaded in, or the smallest where only its weights could tell."""
    if cell.model.dtype == "auto" and place is not None and place.is_dir():
        config = json.loads((place / "config.json").read_text(encoding="utf-8"))
        if config.get("dtype", config.get("torch_dtype")) not in ELEMENT_BYTES:
            return min(ELEMENT_BYTES, key=lambda name: ELEMENT_BYTES[name])
    return cell.model.dtype
