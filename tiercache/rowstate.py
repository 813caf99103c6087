"""State of sequences that isn't per token: what scorers remember, and the newest queries."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from tiercache.store import Geometry

Layout = Mapping[str, tuple[tuple[int, ...], torch.dtype]]


class RowState:
    """Named tensors [rows, ...]; running rows are always a prefix, as in the stores."""

    def __init__(self, layout: Layout, device: torch.device) -> None:
        self.planes = {
            name: torch.zeros(0, *shape, dtype=dtype, device=device) for name, (shape, dtype) in layout.items()
        }

    def join(self, first: int, rows: int) -> None:
        """Rows [first, first + rows) begin, all zero."""
        for name, plane in self.planes.items():
            missing = first + rows - plane.shape[0]
            if missing > 0:
                plane = self.planes[name] = torch.cat([plane, plane.new_zeros(missing, *plane.shape[1:])])
            plane[first : first + rows] = 0

    def adopt(self, other: "RowState", first: int, order: Sequence[int]) -> None:
        """Rows of another state, in this order, follow the first `first`."""
        self.join(first, len(order))
        for name, plane in self.planes.items():
            plane[first : first + len(order)] = other.planes[name][order]

    def copy_row(self, source: int, row: int) -> None:
        for plane in self.planes.values():
            plane[row] = plane[source]

    def leave(self, row: int, last: int) -> None:
        """The last row takes the place of one that ended."""
        for plane in self.planes.values():
            plane[row] = plane[last]

    def rows(self, rows: slice | list[int]) -> dict[str, Tensor]:
        """Some rows: views of a slice, copies for a list."""
        return {name: plane[rows] for name, plane in self.planes.items()}


class QueryWindow:
    """The newest `size` queries of each row, after RoPE: a ring in which position p stands at p modulo size."""

    def __init__(self, geometry: Geometry, size: int, device: torch.device) -> None:
        self.size = size
        g = geometry
        layout = {
            # A position's queries lie in one piece.
            "queries": ((size, g.layers, g.query_heads, g.head_dim), g.dtype),
            "after": ((size,), torch.long),  # position + 1, so that 0 means none
        }
        self.state = RowState(layout, device)
        self._layers = g.layers
        self._step: list[Tensor] = []  # queries of this step's layers so far

    def write_chunk(self, layer: int, row: int, query: Tensor, start: int) -> None:
        """Queries [heads, n, head_dim] of one row at positions start, start + 1, …"""
        first = max(0, query.shape[1] - self.size)
        places = torch.arange(start + first, start + query.shape[1], device=query.device)
        self.state.planes["queries"][row, places % self.size, layer] = query[:, first:].transpose(0, 1)
        self.state.planes["after"][row, places % self.size] = places + 1

    def write(self, layer: int, query: Tensor, now: Tensor) -> None:
        """One query for each running row: [rows, heads, head_dim], at true positions `now` [rows]. Layers follow each
        other, and all are written with the last."""
        if layer == 0:
            self._step.clear()  # of a step that failed
        self._step.append(query)
        if layer < self._layers - 1:
            return
        places = torch.arange(len(now), device=now.device) * self.size + now % self.size
        for name, new in (("queries", torch.stack(self._step, dim=1)), ("after", now + 1)):
            self.state.planes[name].flatten(0, 1).index_copy_(0, places, new)
        self._step.clear()

    def ring(self, now: Tensor) -> tuple[Tensor, Tensor]:
        """For whoever writes a step's queries himself: where to, [rows, places, layers, heads, head_dim], and at which
        place of each row, int64 [rows]. They count as written."""
        places = now % self.size
        self.state.planes["after"][: len(now)].scatter_(1, places.unsqueeze(1), (now + 1).unsqueeze(1))
        return self.state.planes["queries"], places

    def read(self, rows: slice | list[int]) -> tuple[Tensor, Tensor]:
        """Queries [layers, rows, heads, size, head_dim] and their positions [rows, size], -1 for none."""
        planes = self.state.rows(rows)
        return planes["queries"].permute(2, 0, 3, 1, 4), planes["after"] - 1
