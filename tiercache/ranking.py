"""The order in which candidates are worth keeping: a scorer's scores, by scope and by window, ties to the newer."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tiercache.kernels import tiers
from tiercache.policy import Policy
from tiercache.rowstate import QueryWindow, RowState
from tiercache.scorers.base import Facts, Scorer, View, reduce_scope
from tiercache.store import TierStore, empty_value, gather, neighbours

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

    def best_first(self, stores: Sequence[TierStore], facts: Sequence[RowFacts]) -> Tensor:
        """Slots of some rows over all stores, one after the other, best first: int64 [L, R, H, slots].

        Protected tokens come first, free slots last. Among equals the newer is better, so that with all scores equal
        every policy keeps the most recent, on every backend.
        """
        return order_of(*self.row_scores(stores, facts))

    def stores_of(
        self, stores: Sequence[TierStore], facts: Sequence[RowFacts], kept: Sequence[Sequence[int]]
    ) -> Tensor:
        """Where the tokens of some rows are to lie, the best in the first store: number of a store for each slot of all
        of them, [L, R, H, slots], and the number of stores for what leaves.

        kept: for each row, how many tokens each store takes.
        """
        score, pos, protected = self.row_scores(stores, facts)
        kernel = tiers.divide() if pos.device.type == "cpu" else None
        if kernel is not None:
            return kernel(score, pos, protected, kept)
        return by_rank(order_of(score, pos, protected), kept)

    def row_scores(
        self, stores: Sequence[TierStore], facts: Sequence[RowFacts], event: bool = True
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Scores (float64), positions and protection of some rows' slots, as they lie: each [L, R, H, slots].

        Of each store there are as many slots as the row with the most uses. Without an `event` the scorer remembers
        nothing of it: for those who only look.
        """
        planes = self._tokens(stores, [each.row for each in facts])
        pos = planes["pos"]
        protected = inside(pos, [each.protected for each in facts])
        if not self._sorts:
            return self._scored(planes, protected, stores, facts, event), pos, protected
        order = torch.where(pos < 0, NOWHERE, pos).argsort(dim=-1)
        planes = {name: gather(plane, order) for name, plane in planes.items()}
        score = self._scored(planes, protected.gather(-1, order), stores, facts, event, order)
        return torch.empty_like(score).scatter_(-1, order, score), pos, protected

    def _scored(
        self,
        planes: dict[str, Tensor],
        protected: Tensor,
        stores: Sequence[TierStore],
        facts: Sequence[RowFacts],
        event: bool,
        order: Tensor | None = None,
    ) -> Tensor:
        view = self._view(planes, ~protected & (planes["pos"] >= 0), facts)
        if self.scorer.remembers:
            self._remember(view, stores if event else (), [each.row for each in facts], order)
        return self.score(view).double()

    def _remember(self, view: View, stores: Sequence[TierStore], rows: Sequence[int], order: Tensor | None) -> None:
        """Writes what the scorer remembers into the view and, undoing the view's `order`, to where the tokens lie: in
        these stores, or nowhere."""
        holding = [store for store in stores if store.used(rows)]
        for name, values in self.scorer.remember(view).items():
            view.fields[name].copy_(values)
            if not stores:
                continue
            plane = values.masked_fill(view.pos < 0, empty_value(name))
            if order is not None:
                plane = torch.empty_like(plane).scatter_(-1, order, plane)
            parts = torch.split(plane, [store.used(rows) for store in holding], dim=-1)
            for store, part in zip(holding, parts, strict=True):
                store.write(rows, name, part.to(store.device))

    @property
    def _sorts(self) -> bool:
        return self.scorer.ordered or self.policy.storage.positions == "cache"

    def _tokens(self, stores: Sequence[TierStore], rows: Sequence[int]) -> dict[str, Tensor]:
        """Metadata, and where the scorer wants them keys and values, of all tiers: [L, R, H, slots, ...]."""
        names = ("pos", *stores[0].fields, *(("k", "v") if self.scorer.needs_keys else ()))
        found = []
        for store in stores:
            if not store.used(rows):
                continue
            part = store.read(rows, names)
            found.append({name: plane.to(stores[0].device) for name, plane in part.items()})
        return {name: torch.cat([part[name] for part in found], dim=3) for name in found[0]}

    def _view(self, planes: dict[str, Tensor], candidate: Tensor, facts: Sequence[RowFacts]) -> View:
        rows, device = neighbours([each.row for each in facts]), candidate.device
        queries, places = self.queries.read(rows) if self.queries else (None, None)
        keys = planes.get("k")
        if keys is not None and self.policy.storage.positions == "cache":
            assert self.facts.rope is not None, "checked when the cache was made"
            keys = self.facts.rope.turn(keys, torch.arange(keys.shape[3], device=device))
        seeds, seen, prompt = torch.tensor([[each.seed, each.seen, each.prompt] for each in facts], device=device).T
        return View(
            pos=planes["pos"],
            fields={name: plane for name, plane in planes.items() if name not in ("k", "v", "pos")},
            may_move=candidate,
            seeds=seeds,
            seen=seen,
            prompt=prompt,
            state=self.state.rows(rows),
            keys=keys,
            values=planes.get("v"),
            queries=queries,
            query_pos=places,
            keep=[each.keep for each in facts],
            scaling=self.facts.geometry.head_dim**-0.5,
        )


def order_of(score: Tensor, pos: Tensor, protected: Tensor) -> Tensor:
    """Slots, best first: protected ones, then by score, among equals the newer, free ones last; int64 like `score`."""
    score = score.masked_fill(protected, float("inf")).masked_fill(pos < 0, float("-inf"))
    newest_first = pos.argsort(dim=-1, descending=True)
    ranked = score.gather(-1, newest_first).argsort(dim=-1, descending=True, stable=True)
    return newest_first.gather(-1, ranked)


def by_rank(best_first: Tensor, kept: Sequence[Sequence[int]]) -> Tensor:
    """Each slot's store, given slots in order: the first kept[row][0] of a row go to the first store, and so on."""
    ends = torch.tensor(kept).cumsum(-1)
    store = (torch.arange(best_first.shape[-1]).view(-1, 1) >= ends.unsqueeze(1)).sum(-1)  # [rows, slots]
    store = store.to(best_first.device).view(1, len(kept), 1, -1).expand_as(best_first)
    return torch.empty_like(best_first).scatter_(-1, best_first, store)


def inside(pos: Tensor, spans: Sequence[Spans]) -> Tensor:
    """Which slots hold a token in one of its row's [start, stop) spans; pos [L, R, H, S], spans of each row."""
    width = max(len(row) for row in spans)
    edges = torch.tensor(
        [[*row, *[(0, 0)] * (width - len(row))] for row in spans], dtype=torch.int32, device=pos.device
    )
    result = torch.zeros_like(pos, dtype=torch.bool)
    for i in range(width):
        start, stop = edges[:, i, 0].view(1, -1, 1, 1), edges[:, i, 1].view(1, -1, 1, 1)
        result |= (pos >= start) & (pos < stop)
    return result


def unprotected(pos: Tensor, spans: Sequence[Spans]) -> Tensor:
    """Which slots hold a token outside of all spans; in fewer steps where only a row's first and newest are inside."""
    edges = candidate_edges(spans)
    if edges is None:
        return (pos >= 0) & ~inside(pos, spans)
    first, newest = edges.to(pos.device).view(1, -1, 2, 1, 1).unbind(2)
    return (pos >= first) & (pos < newest)


def candidate_edges(spans: Sequence[Spans]) -> Tensor | None:
    """Between the protected first tokens and the newest, which reach to the end: int32 [rows, 2], on the host.

    None where a row has other spans.
    """
    edges = [
        (0, row[0][0]) if len(row) == 1 else (row[0][1], row[1][0]) if len(row) == 2 and row[0][0] == 0 else None
        for row in spans
    ]
    return None if None in edges else torch.tensor(edges, dtype=torch.int32)


def window_sums(score: Tensor, pos: Tensor, window: int) -> Tensor:
    """Each token's score replaced by the sum over its window of positions; free slots (-1) add nothing."""
    index = (pos.long() // window).clamp_min(0)
    filled = score.masked_fill(pos < 0, 0)
    sums = score.new_zeros(*score.shape[:-1], int(index.max()) + 1).scatter_add_(-1, index, filled)
    return sums.gather(-1, index)
