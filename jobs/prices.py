"""GPU hours of a sweep's cells on the cards that people have: for `tiercache plan`. Bounds, not forecasts.

How long generations will be isn't known before a run, so it is said where a length comes from: the token limit (the
worst case), the user, or samples that are stored already.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tiercache.blocks import gpus_needed, weights_of
from tiercache.errors import ResourceError
from tiercache.gpus import GPU_USABLE, GPUS, Machine
from tiercache.policy import Policy
from tiercache.price import Work, at_length, price
from tiercache.requests import check_number
from tiercache.shapes import ModelShape

if TYPE_CHECKING:
    from db.lengths import GenerationLength

CARDS: dict[str, Machine] = {name: GPUS[name] for name in ("H100-80GB", "RTX4090-24GB")}


@dataclass(frozen=True)
class NewTokens:
    """Generated tokens of a sample in the mean, and where the number comes from."""

    mean: float
    source: str


@dataclass(frozen=True)
class Lengths:
    """What is known of generations before they are made.

    given     by the user, for all cells.
    measured  stored generations.

    Raises:
        RequestError: `given` is below 1.
    """

    given: float | None = None
    measured: Sequence["GenerationLength"] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        if self.given is not None:
            check_number("--mean-tokens", self.given, "from 1", lambda x: 1 <= x < float("inf"))

    def of(self, model: str, benchmark: str, policy: str, most: int) -> NewTokens:
        """The user's word first, then this policy's samples, then other policies' on the same problems, then the limit.

        Only samples under the same limit count: a lower one would have cut what a higher one lets run.
        """
        if self.given is not None:
            return NewTokens(min(self.given, most), "given")
        alike = [m for m in self.measured if (m.model, m.benchmark, m.max_new_tokens) == (model, benchmark, most)]
        own = [m for m in alike if m.policy == policy]
        if own:
            return NewTokens(_mean(own), "measured")
        return NewTokens(_mean(alike), "other policies") if alike else NewTokens(float(most), "limit")


def _mean(found: Iterable["GenerationLength"]) -> float:
    found = list(found)
    return sum(each.samples * each.mean_tokens for each in found) / sum(each.samples for each in found)


@dataclass(frozen=True)
class CardPrice:
    """A cell on one kind of card.

    hours  of one card, at least; None where that can't be said, and `why`.
    gpus   cards that the model and one sequence take; None where the size of the weights isn't known.
    rows   decoded together.
    """

    card: str
    hours: float | None
    gpus: int | None = None
    rows: int | None = None
    bound_by: str | None = None
    why: str | None = None


def card_prices(
    name: str, shape: ModelShape | None, policy: Policy, dtype: str, work: Work, most_rows: int, efficiency: float
) -> tuple[CardPrice, ...]:
    """A cell's price on each of `CARDS`.

    Args:
        name: the model's, for messages.
        efficiency: share of the roofline that is reckoned with; 1 gives the bound itself.
    """
    return tuple(_on(card, name, shape, policy, dtype, work, most_rows, efficiency) for card in CARDS)


def _on(
    card: str,
    name: str,
    shape: ModelShape | None,
    policy: Policy,
    dtype: str,
    work: Work,
    most_rows: int,
    efficiency: float,
) -> CardPrice:
    machine = CARDS[card]
    weights = shape.weights_as(dtype) if shape is not None else None
    if shape is None or weights is None:
        return CardPrice(card, None, why=f"{name}: the size of its weights isn't known here")
    found = price(shape, policy, dtype, work, most_rows, machine)
    if found is not None:
        return CardPrice(card, found.hours / efficiency, 1, found.rows, found.bound_by)
    if most_rows < 1:
        return CardPrice(card, None, why=f"{name}, {policy.label}: no sequence fits hbm_kv_budget")
    room = at_length(shape, policy, dtype, work.prompt, work.most_new, machine)
    parts = weights_of(shape, dtype)
    assert parts is not None, "known above"
    why = (
        f"{name} doesn't fit one {card}: weights of {weights / 2**30:.1f} GiB and a sequence, "
        f"{room.usable / 2**30:.1f} GiB usable ({GPU_USABLE:.0%})"
    )
    try:
        return CardPrice(card, None, gpus_needed(parts, max(room.prompt, room.row), machine.gpu_bytes), why=why)
    except ResourceError:  # nor can it be split
        return CardPrice(card, None, why=why)
