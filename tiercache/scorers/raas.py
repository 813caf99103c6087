"""Time of last use: RaaS (2502.11147)."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, unflatten

from tiercache.catalog.recurring import Raas
from tiercache.scorers.base import Observed, Scorer, View
from tiercache.scorers.buckets import buckets


class LastUse(Scorer):
    """ts(page) = the last step at which the page's score was above the threshold, or among the `top` share of pages.

    A page's score is the softmax over the live pages of the largest q.k that the box around the page's keys allows
    (channel by channel, the minimum or the maximum), the maximum over the group's queries. A page is as new as its
    newest token until it is used.

    Our decisions, where the paper is silent: the heads of a layer share the mean of their page scores, unless the scope
    is `head`; among pages of equal age the one with the lowest current score goes first.
    """

    observes = True
    needs_positions = True
    signal: Raas

    def fields(self) -> dict[str, torch.dtype]:
        return {"used": torch.int32, "current": self.wide}  # used: ts + 1, so that 0 means never

    def observe(self, seen: Observed) -> None:
        device = seen.query.device
        keys = _join([part.keys.to(device) for part in seen.parts])
        pos = _join([part.pos.to(device) for part in seen.parts])
        page = self.signal.page
        if self.window % page == 0 and len(seen.parts) == 1:  # pages leave as a whole, so they lie one after the other
            bucket = (torch.arange(pos.shape[-1], device=device) // page).expand(pos.shape)
            low, high, live = self._neighbours(keys, pos)
        else:
            bucket = buckets(pos.long() // page)
            low, high, live = self._scattered(keys, pos, bucket)
        scores = self._page_scores(seen.query, low, high, live, seen.scaling)
        current = scores.clamp_min(0).gather(-1, bucket)
        used = self._used(scores).gather(-1, bucket)  # never a free slot: its bucket's score is -1
        start = 0
        for part in seen.parts:
            stamp, stop = part.fields["used"], start + part.pos.shape[-1]
            now = (seen.now + 1).to(stamp).view(-1, 1, 1)
            stamp.copy_(torch.where(used[..., start:stop].to(stamp.device), now, stamp))
            part.fields["current"].copy_(current[..., start:stop])
            start = stop

    def _neighbours(self, keys: Tensor, pos: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Least and greatest keys of each page of slots [rows, KV heads, pages, d], and which pages are there."""
        page, slots = self.signal.page, pos.shape[-1]
        whole = slots // page * page
        held = unflatten(F.pad(pos >= 0, (0, -slots % page)), -1, (-1, page))
        live = held.any(-1)
        pages = unflatten(keys[:, :, :whole], 2, (-1, page))  # a view: nothing is copied but a page of each row
        low, high = pages.amin(3), pages.amax(3)
        if whole:
            # All pages of a row are whole but its last: masking that one alone spares copies of all keys.
            last = (live.sum(-1, keepdim=True) - 1).clamp(0, whole // page - 1).unsqueeze(-1)  # [rows, KV heads, 1, 1]
            of_box = last.expand(-1, -1, -1, keys.shape[-1])
            tail = pages.gather(2, last.unsqueeze(-1).expand(-1, -1, -1, page, keys.shape[-1]))
            least, most = _box(tail, held.gather(2, last.expand(-1, -1, -1, page)))
            low.scatter_(2, of_box, least)
            high.scatter_(2, of_box, most)
        if whole < slots:
            least, most = _box(keys[:, :, None, whole:], held[:, :, -1:, : slots - whole])
            low, high = torch.cat([low, least], 2), torch.cat([high, most], 2)
        return low.to(self.wide), high.to(self.wide), live

    def _scattered(self, keys: Tensor, pos: Tensor, bucket: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The same for pages whose tokens lie anywhere, by bucket."""
        index = bucket.unsqueeze(-1).expand_as(keys)
        empty = torch.zeros_like(keys)
        low = empty.scatter_reduce(2, index, keys, "amin", include_self=False).to(self.wide)
        high = empty.scatter_reduce(2, index, keys, "amax", include_self=False).to(self.wide)
        return low, high, torch.zeros_like(bucket, dtype=torch.bool).scatter_(-1, bucket, pos >= 0)

    def _page_scores(self, query: Tensor, low: Tensor, high: Tensor, live: Tensor, scaling: float) -> Tensor:
        """[rows, KV heads, buckets]; -1 for a bucket without a live page."""
        query = query.to(self.wide)
        # max over the box of q.k, without a tensor of group x channels: each sign of q has its own corner.
        bound = query.clamp_min(0) @ high.transpose(2, 3) + query.clamp_max(0) @ low.transpose(2, 3)
        shares = torch.softmax((bound.amax(2) * scaling).masked_fill(~live, float("-inf")), dim=-1)
        if self.signal.scope != "head":
            shares = shares.mean(1, keepdim=True).expand_as(shares)
        return shares.masked_fill(~live, -1)

    def _used(self, scores: Tensor) -> Tensor:
        """Which buckets hold a page that this step uses."""
        if self.signal.top is None:
            return scores > self.signal.threshold
        pages = (scores >= 0).sum(-1, keepdim=True)
        last = (self.signal.top * pages - 1e-9).ceil().long().clamp_min(1) - 1
        return scores >= scores.sort(dim=-1, descending=True).values.gather(-1, last)

    def score(self, view: View) -> Tensor:
        # float64: whole steps, and beside them a fraction below one for the current score.
        page = self.signal.page
        born = (view.pos // page + 1) * page  # + 1 as in `used`; the same for a whole page
        return torch.maximum(view.fields["used"], born).double() + view.fields["current"].double() / 2


def _box(keys: Tensor, held: Tensor) -> tuple[Tensor, Tensor]:
    """Least and greatest keys [..., d] of those that are there: keys [..., page, d], held bool [..., page]."""
    free = ~held.unsqueeze(-1)
    return keys.masked_fill(free, float("inf")).amin(-2), keys.masked_fill(free, float("-inf")).amax(-2)


def _join(parts: Sequence[Tensor]) -> Tensor:
    """Along the slots; what is whole isn't copied."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), dim=2)
