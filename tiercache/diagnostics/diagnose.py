"""All diagnostics of one finished sequence.

"The full cache's attention" is that of a full-cache pass teacher-forced on the policy's own tokens: the same text,
nothing evicted. Numbers are means over steps or cycles, query heads, KV heads and layers; layers also one by one.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, unflatten

from tiercache import hf
from tiercache.diagnostics.churn import selection_churn
from tiercache.diagnostics.compare import compare_outputs, output_error
from tiercache.diagnostics.fmm import future_missed_mass
from tiercache.diagnostics.lir import Reactivation, reactivation, wanted_windows
from tiercache.diagnostics.recall import attention_recall
from tiercache.diagnostics.shadow import Shadow, shadow
from tiercache.diagnostics.trace import COARSE, DEVICE, EVICTED, QUANTISED, Trace
from tiercache.diagnostics.values import Diagnostics, Units
from tiercache.model import LoadedModel
from tiercache.parts import Storage
from tiercache.placement import RowTiers, recent_tokens
from tiercache.policy import Policy
from tiercache.quantize import formats
from tiercache.requests import Request


@torch.inference_mode()
def diagnose(
    loaded: LoadedModel,
    policy: Policy,
    request: Request,
    tokens: Sequence[int],
    trace: Trace,
    units: Units | None = None,
    chunk: int = 512,
) -> Diagnostics:
    """Measures one sequence: what `policy` generated for `request`, with the trace that a `Recorder` has of it."""
    assert trace.steps == len(tokens) - 1, "the trace is of another sequence"
    hf.check_prepared(loaded.model)
    full = shadow(loaded, [*request.prompt, *tokens[:-1]], chunk)
    policy_hidden = torch.stack(trace.hidden).to(loaded.device)
    head = partial(hf.logits, loaded.model)
    kl, first = compare_outputs(
        full.hidden[trace.prompt - 1 :], policy_hidden, head, tokens, request.sampling, request.seed
    )
    found = _Measures(policy, full, trace, units or Units()).run()
    return replace(found, kl=_mean(kl[1:]), first_divergent=first)


class _Measures:
    """Cycle by cycle, layer by layer; one block of attention rows is in memory at a time."""

    def __init__(self, policy: Policy, full: Shadow, trace: Trace, units: Units) -> None:
        self.policy, self.full, self.trace, self.units = policy, full, trace, units
        self.found: dict[str, list[Tensor]] = defaultdict(list)  # of each step or cycle, [layers, kv_heads]
        self.selections: list[Tensor] = []

    def run(self) -> Diagnostics:
        before: Tensor | None = None
        for start, maps in self.trace.cycles(self.units.cycle):
            if before is not None:
                self.found["churn"].append(selection_churn(*self._unprotected(before, maps[0])))
            before = maps[0]
            if len(maps) > 1:
                self._cycle(start, maps)
        lir = self._reactivation()
        layers = {name: _by_layer(each) for name, each in self.found.items()}
        means = {name: _mean(torch.tensor(each)) for name, each in layers.items()}
        return Diagnostics(
            steps=self.trace.steps,
            fmm_acc=means.get("fmm_acc"),
            fmm_fp=means.get("fmm_fp"),
            fmm_acc_sinks=means.get("fmm_acc_sinks"),
            fmm_fp_sinks=means.get("fmm_fp_sinks"),
            churn=means.get("churn"),
            recall=means.get("recall"),
            output_error=means.get("error"),
            lir_rescued=lir.rescued,
            lir_eligible=lir.eligible,
            detail={
                "layers": {name: [_plain(x) for x in each] for name, each in layers.items() if name != "by_step"},
                "fmm_acc_mean_of_ratios": means.get("by_step"),
                "lir_wait_cycles": _mean(torch.tensor(lir.waits, dtype=torch.float64)),
            },
        )

    def _cycle(self, start: int, maps: list[Tensor]) -> None:
        """The steps after `start`: `maps` holds the tiers before each of them, and after the last."""
        prompt, units = self.trace.prompt, self.units
        stop, ahead = start + len(maps) - 1, min(start + units.horizon, self.trace.steps)
        tiers = _before_each_step(maps)
        found: dict[str, list[Tensor]] = defaultdict(list)  # of each layer, [kv_heads, ...]
        for layer in range(tiers.shape[0]):
            logits = self.full.logits(layer, prompt + start, prompt + max(stop, ahead))
            weights = torch.softmax(logits, -1)
            now = (slice(None), slice(None), slice(stop - start), slice(prompt + stop))
            placed = tiers[layer].to(weights.device)
            held = (placed != EVICTED).unsqueeze(1)
            stored = self._stored(layer, prompt + start, prompt + stop, placed)
            values = self.full.values[layer][:, None, : prompt + stop]
            found["recall"].append(attention_recall(weights[now], held).mean(1))
            found["error"].append(output_error(logits[now], values, held, stored).mean(1))
            found["mass"].append(weights[now].mean(1).sum(1))
            if ahead == start + units.horizon:  # otherwise the event is censored
                future = weights.mean(1)[:, : ahead - start, : prompt + start]
                for name, missed in self._future(future, maps[0][layer].to(weights.device)).items():
                    found[name].append(missed)
        stacked = {name: torch.stack(layers).cpu() for name, layers in found.items()}
        mass = stacked.pop("mass")
        for name in ("recall", "error"):
            self.found[name].extend(stacked.pop(name).unbind(-1))
        for name, values in stacked.items():
            self.found[name].append(values)
        if len(maps) > units.cycle:
            self.selections.append(self._selection(mass, maps[-1]))

    def _future(self, mass: Tensor, tiers: Tensor) -> dict[str, Tensor]:
        accessible = tiers != EVICTED
        precise = accessible & (tiers < QUANTISED)
        sinks = self.units.sinks
        acc, by_step = future_missed_mass(mass, accessible, sinks)
        return {
            "fmm_acc": acc,
            "fmm_fp": future_missed_mass(mass, precise, sinks)[0],
            "fmm_acc_sinks": future_missed_mass(mass, accessible)[0],
            "fmm_fp_sinks": future_missed_mass(mass, precise)[0],
            "by_step": by_step,
        }

    def _stored(self, layer: int, start: int, stop: int, tiers: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
        """What a read of the quantised tokens yields, for each format; tiers [kv_heads, steps, n]."""
        storage, found = self.policy.storage, []
        for tier, form in ((QUANTISED, storage), (COARSE, storage.coarse)):
            packed = (tiers == tier).unsqueeze(1)
            if form is None or not packed.any():
                continue
            rough = self._read_back(layer, stop, form)
            found.append((packed, self.full.logits(layer, start, stop, rough[0]), rough[1][:, None, :stop]))
        return found

    def _read_back(self, layer: int, stop: int, form: Storage) -> list[Tensor]:
        """Keys and values of the first `stop` tokens as they come out of quantised storage."""
        window = self.policy.placement.window
        # A window's range is over all of its tokens, and only whole ones are packed.
        whole = -(-stop // window) * window
        keys, values = self.full.keys[layer], self.full.values[layer]
        kinds, rough = formats(form, window, keys.shape[-1]), []
        for side, kind in ((keys, kinds["k"]), (values, kinds["v"])):
            part = side[:, :whole]
            padded = torch.cat([part, part[:, -1:].expand(-1, whole - part.shape[1], -1)], dim=1)
            planes = kind.pack(padded)
            rough.append(kind.unpack(planes["codes"], planes["grid"], side.dtype))
        return rough

    def _unprotected(self, *maps: Tensor) -> tuple[Tensor, ...]:
        """What each map holds, bool [layers, kv_heads, n] of the same n, without sinks and its own recent tokens."""
        width = maps[-1].shape[-1]
        found = []
        for tiers in maps:
            held = torch.zeros(*tiers.shape[:2], width, dtype=torch.bool)
            span = slice(self.units.sinks, self._settled(tiers.shape[-1]))
            held[..., span] = (tiers != EVICTED)[..., span]
            found.append(held)
        return tuple(found)

    def _settled(self, seen: int) -> int:
        """Tokens older than the policy's recent window."""
        return max(0, seen - recent_tokens(self.policy.placement, RowTiers(self.trace.prompt, seen)))

    def _selection(self, mass: Tensor, tiers: Tensor) -> Tensor:
        """Which windows a cycle's full attention would select under the same budget, int8 [layers, kv_heads, windows].

        Observable are whole windows beyond the sinks and older than the recent tokens; the budget is what the policy
        holds of these, in windows.
        """
        size, sinks = self.units.window, self.units.sinks
        count = tiers.shape[-1] // size
        cut = (..., slice(count * size))
        windows = unflatten(mass[cut], -1, (count, size)).sum(-1)
        starts = torch.arange(count) * size
        observable = ((starts >= sinks) & (starts + size <= self._settled(tiers.shape[-1]))).expand_as(windows)
        held = unflatten((tiers != EVICTED)[cut], -1, (count, size)).sum(-1)
        budget = (held.masked_fill(~observable, 0).sum(-1) / size).round().long()
        return wanted_windows(windows, observable, budget)

    def _reactivation(self) -> Reactivation:
        if not self.selections:
            return Reactivation(0, 0)
        count = max(each.shape[-1] for each in self.selections)
        grown = [F.pad(each, (0, count - each.shape[-1]), value=-1) for each in self.selections]
        rows: list[list[int]] = torch.stack(grown, dim=-1).flatten(0, 2).tolist()
        return reactivation(rows, self.units.patience, self.units.follow)


def _before_each_step(maps: list[Tensor]) -> Tensor:
    """What each step's query reads: the tokens as they lay before it and its own, int8 [layers, kv_heads, steps, n]."""
    steps, first = len(maps) - 1, maps[0].shape[-1]
    tiers = maps[0].new_full((*maps[0].shape[:2], steps, first + steps), EVICTED)
    for i, before in enumerate(maps[:-1]):
        tiers[:, :, i, : first + i] = before
        tiers[:, :, i, first + i] = DEVICE
    return tiers


def _by_layer(values: list[Tensor]) -> list[float]:
    """Mean over cycles, then over heads: each [layers, kv_heads]; NaN left out."""
    return [float(x) for x in torch.stack(values).double().nanmean(0).nanmean(-1)]


def _mean(values: Tensor) -> float | None:
    return _plain(float(values.double().nanmean())) if len(values) else None


def _plain(value: float) -> float | None:
    """None for NaN: it has to be storable."""
    return None if value != value else value
