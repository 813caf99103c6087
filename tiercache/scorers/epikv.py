"""Movements of the hidden state: EpiKV (2606.26472)."""

from collections.abc import Mapping

import torch
from torch import Tensor

from tiercache.catalog import hidden as catalog
from tiercache.catalog.base import Signal
from tiercache.errors import PolicyError
from tiercache.scorers.base import Facts, Scorer, View

DEPTH = 32  # of the model that the paper's layer numbers are of
PAPER = {"zscore": ((10,), (21,)), "variance": ((10,), (21,)), "band": (tuple(range(7, 14)), tuple(range(18, 26)))}
EPSILON = 1e-6


class EpiKV(Scorer):
    """s(t) = mean over band A of x_l(t) - mean over band B of x_l(t), computed once, when token t is read.

    g_l(t) = |h_l(t) - h_l(t - 1)|, h_l the output of decoder layer l (from 1). Over the newest `rolling` of g_l, t's
    own included: `variance` has x = their mean, `zscore` and `band` have x = (g_l(t) - mean) / (deviation + 1e-6), the
    population's. The prompt counts like the rest. The first token has no movement and x = 0; with fewer than two
    movements a z-score is 0.
    """

    shared = True

    def __init__(self, signal: Signal, facts: Facts) -> None:
        super().__init__(signal, facts)
        assert isinstance(signal, catalog.EpiKV)
        self.kind, self.rolling = signal.signal, signal.rolling
        bands = _bands(signal, facts.geometry.layers)
        self.hidden_layers = tuple(sorted({layer - 1 for band in bands for layer in band}))
        # Of the watched layers in the mean over band A less that over band B, [k, 1].
        shares = [[(layer + 1 in band) / len(band) for band in bands] for layer in self.hidden_layers]
        self._shares = torch.tensor([[a - b] for a, b in shares], dtype=torch.float64)
        self._ages = torch.arange(self.rolling).flip(0)  # of a window's movements

    def fields(self) -> dict[str, torch.dtype]:
        return {"epiphany": self.wide}

    def state(self) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """`last`: hidden states of the newest token; `moves`: newest movements, the newest last; `count`: tokens."""
        g, watched = self.facts.geometry, len(self.hidden_layers)
        weight = self.facts.output_weight
        hidden = weight(0).shape[0] if weight else g.query_heads * g.head_dim
        return {
            "last": ((watched, hidden), self.wide),
            "moves": ((watched, self.rolling), self.wide),
            "count": ((), torch.long),
        }

    def observe_hidden(self, hidden: Mapping[int, Tensor], state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        new = torch.stack([hidden[layer] for layer in self.hidden_layers], dim=1).to(self.wide)  # [rows, k, n, hidden]
        tokens, before = new.shape[2], state["last"].unsqueeze(2)
        if tokens > 1:
            before = torch.cat([before, new[:, :, :-1]], dim=2)
        moves = torch.cat([state["moves"], (new - before).norm(dim=-1)], dim=2)  # [rows, k, rolling + n]
        # Token p has p movements behind it: the first token's is none.
        behind = state["count"].view(-1, 1, 1)
        if tokens > 1:
            behind = behind + torch.arange(tokens, device=new.device)
        each = self._signal(moves.unfold(2, self.rolling, 1)[:, :, 1:], behind.clamp_max(self.rolling))
        state["last"].copy_(new[:, :, -1])
        state["moves"].copy_(moves[:, :, tokens:])
        state["count"].add_(tokens)
        self._shares = self._shares.to(each)
        return {"epiphany": (each * self._shares).sum(1)}

    def _signal(self, windows: Tensor, samples: Tensor) -> Tensor:
        """Windows [rows, k, n, rolling], newest last, of which `samples` [rows, 1, n] count -> x [rows, k, n]."""
        self._ages = self._ages.to(windows.device)
        beyond = self._ages >= samples.unsqueeze(-1)
        some = samples.clamp_min(1).to(windows.dtype)  # a whole number's root is float32
        mean = windows.masked_fill(beyond, 0).sum(-1) / some
        if self.kind == "variance":
            return mean
        apart = (windows - mean.unsqueeze(-1)).masked_fill_(beyond, 0)
        deviation = apart.norm(dim=-1) / some.sqrt()
        score: Tensor = apart[..., -1] / deviation.add_(EPSILON)
        return score.masked_fill_(samples < 2, 0)

    def score(self, view: View) -> Tensor:
        return view.fields["epiphany"]


def _bands(signal: catalog.EpiKV, depth: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Layers for and against, from 1: those asked for, or the paper's at the same share of the depth."""
    given = {"band_a": signal.band_a, "band_b": signal.band_b}
    for name, band in given.items():
        if band is not None and max(band) > depth:
            raise PolicyError(f"{name}: the model has {depth} layers (got {list(band)}); allowed: 1 to {depth}.")
    a, b = (_scaled(band, depth) for band in PAPER[signal.signal])
    # In a shallow model both could fall on one layer, and all scores would be 0.
    apart = tuple(layer for layer in b if layer not in a) or (min(max(a) + 1, depth),)
    return given["band_a"] or a, given["band_b"] or apart


def _scaled(layers: tuple[int, ...], depth: int) -> tuple[int, ...]:
    places = (int(layer * depth / DEPTH + 0.5) for layer in layers)
    return tuple(sorted({min(max(place, 1), depth) for place in places}))
