"""Reading only the pages that matter, evicting nothing: Quest (2406.10774).

A page is a stretch of consecutive positions. Beside the keys lie, for each page, channel and KV head, the least and the
greatest value: no key of the page can have a larger product with a query than the box they span allows. Each decode
step reads the pages with the largest bounds.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from tiercache.parts import Budget, Reading
from tiercache.store import Geometry


class PageBounds:
    """Least and greatest key values of each page: [layers, rows, kv_heads, pages, head_dim], for running rows."""

    def __init__(self, geometry: Geometry, size: int, device: torch.device) -> None:
        self.size = size
        shape = (geometry.layers, 0, geometry.kv_heads, 0, geometry.head_dim)
        self.low = torch.zeros(shape, dtype=geometry.dtype, device=device)
        self.high = self.low.clone()

    def reserve(self, rows: int, slots: int) -> None:
        pages = -(-slots // self.size)
        have_rows, have_pages = self.low.shape[1], self.low.shape[3]
        if rows <= have_rows and pages <= have_pages:
            return
        rows, pages = max(rows, have_rows), max(pages, have_pages)
        for name, fill in (("low", float("inf")), ("high", float("-inf"))):
            old = getattr(self, name)
            new = old.new_full((old.shape[0], rows, old.shape[2], pages, old.shape[4]), fill)
            new[:, :have_rows, :, :have_pages] = old
            setattr(self, name, new)

    def fill(self, row: int, keys: Tensor) -> None:
        """A prompt's keys [layers, kv_heads, n, head_dim]; what the row held before is forgotten."""
        self.low[:, row], self.high[:, row] = float("inf"), float("-inf")
        for page, part in enumerate(keys.split(self.size, dim=2)):  # type: ignore[no-untyped-call]
            self.low[:, row, :, page], self.high[:, row, :, page] = part.amin(2), part.amax(2)

    def adopt(self, other: "PageBounds", first: int, order: Sequence[int]) -> None:
        """Rows of another's, in this order, follow the first `first`."""
        pages = other.low.shape[3]
        self.reserve(first + len(order), pages * self.size)
        for mine, theirs, empty in ((self.low, other.low, float("inf")), (self.high, other.high, float("-inf"))):
            mine[:, first : first + len(order)] = empty
            mine[:, first : first + len(order), :, :pages] = theirs[:, order]

    def add(self, layer: int, key: Tensor, slots: Tensor) -> None:
        """One key for each row, [rows, kv_heads, 1, head_dim], at slots [rows]."""
        rows = torch.arange(key.shape[0], device=key.device)
        page = slots // self.size
        self.low[layer, rows, :, page] = torch.minimum(self.low[layer, rows, :, page], key[:, :, 0])
        self.high[layer, rows, :, page] = torch.maximum(self.high[layer, rows, :, page], key[:, :, 0])

    def leave(self, row: int, last: int) -> None:
        self.low[:, row], self.high[:, row] = self.low[:, last], self.high[:, last]

    def bytes(self) -> int:
        return 2 * self.low.numel() * self.low.element_size()


def page_bounds(query: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """No key of a page has a larger product with the query: query [R, H, G, d], boxes [R, H, P, d] -> [R, H, G, P].

    Empty pages (low +inf, high -inf) have -inf.
    """
    empty = (low > high).any(-1).unsqueeze(2)
    low, high = low.masked_fill(low > high, 0), high.masked_fill(low > high, 0)
    positive, negative = query.clamp_min(0), query.clamp_max(0)
    bound = torch.matmul(positive, high.transpose(2, 3)) + torch.matmul(negative, low.transpose(2, 3))
    return bound.masked_fill(empty, float("-inf"))


def pages_to_read(budget: Budget, seen: int, page: int) -> int:
    """Pages of one sequence that a step reads: the budget in whole pages, at least 3."""
    tokens = budget.tokens if budget.tokens is not None else int((budget.ratio or budget.bytes or 0) * seen)
    return max(3, tokens // page)


def unread(bounds: Tensor, counts: Tensor, newest: Tensor, reading: Reading, slots: int) -> Tensor:
    """Which slots aren't read, bool [R, H, G, slots].

    Args:
        bounds: [R, H, G, P]; counts: pages to read of each row, [R]; newest: the page of the newest token, [R], which
            is always read.
    """
    if reading.share_pages:
        bounds = bounds.amax(2, keepdim=True).expand_as(bounds)
    pages = torch.arange(bounds.shape[-1], device=bounds.device)
    bounds = bounds.masked_fill(pages == newest.view(-1, 1, 1, 1), float("inf"))
    rank = bounds.argsort(dim=-1, descending=True, stable=True).argsort(dim=-1)
    chosen = rank < counts.view(-1, 1, 1, 1)
    assert reading.pages is not None, "pages are read"
    return ~chosen.repeat_interleave(reading.pages, dim=-1)[..., :slots]
