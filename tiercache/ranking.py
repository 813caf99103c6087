"""The order in which candidates are worth keeping: a scorer's scores, by scope and by window, ties to the newer."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tiercache.policy import Policy
from tiercache.rowstate import QueryWindow, RowState
from tiercache.scorers.base import Facts, Scorer, View, reduce_scope
from tiercache.store import TierStore, gather

NOWHERE = torch.iinfo(torch.int32).max  # sorts after every position
Spans = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class RowFacts:
    """What an event must know of its row beside the stores."""

    row: int
    seed: int
    seen: int
    prompt: int
    protected: Spans
    keep: int  # candidates that survive


class Ranker:
    """A policy's scorer with everything that it looks at."""

    def __init__(
        self, policy: Policy, scorer: Scorer, facts: Facts, state: RowState, queries: QueryWindow | None
    ) -> None:
        self.policy, self.scorer, self.facts = policy, scorer, facts
        self.state, self.queries = state, queries

    def score(self, view: View) -> Tensor:
        """Scores [L, R, H, S], scope and window applied; float32 or wider."""
        score = self.scorer.score(view)
        if not score.is_floating_point():
            score = score.float()  # positions and draws are exact in 24 bits
        if not self.scorer.shared:
            score = reduce_scope(score, self.policy.scorer.scope)
        score = score.expand_as(view.pos)
        window = self.policy.placement.window
        return window_sums(score, view.pos, window) if window > 1 else score

    def best_first(self, stores: Sequence[TierStore], facts: RowFacts) -> Tensor:
        """Slots of one row over all stores, one after the other, best first: int64 [L, H, tokens].

        Protected tokens come first. Among equals the newer is better, so that with all scores equal every policy keeps
        the most recent, on every backend.
        """
        score, pos, protected = self.row_scores(stores, facts)
        score = score.masked_fill(protected, float("inf"))
        newest_first = pos.argsort(dim=-1, descending=True)
        ranked = score.gather(-1, newest_first).argsort(dim=-1, descending=True, stable=True)
        return newest_first.gather(-1, ranked)

    def row_scores(
        self, stores: Sequence[TierStore], facts: RowFacts, event: bool = True
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Scores (float64), positions and protection of one row's slots, as they lie: each [L, H, slots].

        Without an `event` the scorer remembers nothing of it: for those who only look.
        """
        planes = self._tokens(stores, facts.row, stores[0].device)
        pos = planes["pos"]
        protected = inside(pos, facts.protected)
        if not self._sorts:
            return self._row_score(planes, protected, stores, facts, event), pos, protected
        order = torch.where(pos < 0, NOWHERE, pos).argsort(dim=-1)
        planes = {name: gather(plane, order) for name, plane in planes.items()}
        score = self._row_score(planes, protected.gather(-1, order), stores, facts, event, order)
        return torch.empty_like(score).scatter_(-1, order, score), pos, protected

    def _row_score(
        self,
        planes: dict[str, Tensor],
        protected: Tensor,
        stores: Sequence[TierStore],
        facts: RowFacts,
        event: bool,
        order: Tensor | None = None,
    ) -> Tensor:
        view = self._view(planes, ~protected & (planes["pos"] >= 0), facts)
        if self.scorer.remembers:
            self._remember(view, stores if event else (), facts.row, order)
        return self.score(view).squeeze(1).double()

    def _remember(self, view: View, stores: Sequence[TierStore], row: int, order: Tensor | None) -> None:
        """Writes what the scorer remembers into the view and, undoing the view's `order`, to where the tokens lie: in
        these stores, or nowhere."""
        holding = [store for store in stores if store.extents[row]]
        for name, values in self.scorer.remember(view).items():
            view.fields[name].copy_(values)
            if not stores:
                continue
            plane = values.squeeze(1)
            if order is not None:
                plane = torch.empty_like(plane).scatter_(-1, order, plane)
            parts = torch.split(plane, [store.extents[row] for store in holding], dim=-1)
            for store, part in zip(holding, parts, strict=True):
                store.planes[name][:, row, :, : store.extents[row]] = part

    @property
    def _sorts(self) -> bool:
        return self.scorer.ordered or self.policy.storage.positions == "cache"

    def _tokens(self, stores: Sequence[TierStore], row: int, device: torch.device) -> dict[str, Tensor]:
        """Metadata, and where the scorer wants them keys and values, of all tiers: [L, H, tokens, ...]."""
        metadata = ["pos", *stores[0].fields]
        found = []
        for store in stores:
            extent = store.extents[row]
            if not extent:
                continue
            if self.scorer.needs_keys:
                shape = (self.facts.geometry.layers, self.facts.geometry.kv_heads, extent)
                every = torch.arange(extent, device=store.device).expand(shape)
                part = store.take(row, every)
            else:
                part = {name: store.planes[name][:, row, :, :extent] for name in metadata}
            found.append({name: plane.to(device) for name, plane in part.items()})
        return {name: torch.cat([part[name] for part in found], dim=2) for name in found[0]}

    def _view(self, planes: dict[str, Tensor], candidate: Tensor, facts: RowFacts) -> View:
        rows = slice(facts.row, facts.row + 1)
        queries, places = self.queries.read(rows) if self.queries else (None, None)
        device = candidate.device
        keys = planes.get("k")
        if keys is not None and self.policy.storage.positions == "cache":
            assert self.facts.rope is not None, "checked when the cache was made"
            keys = self.facts.rope.turn(keys, torch.arange(keys.shape[2], device=device))
        return View(
            pos=planes["pos"].unsqueeze(1),
            fields={name: plane.unsqueeze(1) for name, plane in planes.items() if name not in ("k", "v", "pos")},
            candidate=candidate.unsqueeze(1),
            seeds=torch.tensor([facts.seed], device=device),
            seen=torch.tensor([facts.seen], device=device),
            prompt=torch.tensor([facts.prompt], device=device),
            state=self.state.rows(rows),
            keys=None if keys is None else keys.unsqueeze(1),
            values=None if keys is None else planes["v"].unsqueeze(1),
            queries=queries,
            query_pos=places,
            keep=facts.keep,
            scaling=self.facts.geometry.head_dim**-0.5,
        )


def inside(pos: Tensor, spans: Spans) -> Tensor:
    """Whether each position lies in one of the [start, stop) spans."""
    result = torch.zeros_like(pos, dtype=torch.bool)
    for start, stop in spans:
        result |= (pos >= start) & (pos < stop)
    return result


def window_sums(score: Tensor, pos: Tensor, window: int) -> Tensor:
    """Each token's score replaced by the sum over its window of positions; free slots (-1) add nothing."""
    index = (pos.long() // window).clamp_min(0)
    filled = score.masked_fill(pos < 0, 0)
    sums = score.new_zeros(*score.shape[:-1], int(index.max()) + 1).scatter_add_(-1, index, filled)
    return sums.gather(-1, index)
