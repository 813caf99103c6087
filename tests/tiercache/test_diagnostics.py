"""Diagnostics against plain numpy on what the slow reference held, and the properties that they promise."""

import math
from typing import Any

import numpy as np
import oracle
import pytest
import tiny
import torch

from tiercache.diagnostics.diagnose import diagnose
from tiercache.diagnostics.lir import reactivation
from tiercache.diagnostics.trace import DEVICE, EVICTED, HOST, QUANTISED, Recorder, Trace
from tiercache.diagnostics.values import MEANING, Diagnostics, Units
from tiercache.engine import Engine, Limits
from tiercache.lanes import Lanes, LanesStep
from tiercache.placement import RowTiers, recent_tokens
from tiercache.policy import Policy, parse_policy
from tiercache.requests import Completion, Request

MODEL = "llama"
SMALL = Units(cycle=3, horizon=7, window=2, sinks=3, patience=2, follow=3)
EXACT = [name for name in tiny.POLICIES if name != "hierarchy-packed"]  # the slow reference doesn't quantise
OFFLOAD = {"name": "hierarchy", "hbm": 0.3, "evict": 0, "every": 8, "recent": 8, "pin_prompt": False}


def recorded(
    batch: list[Request], policy: Policy, **limits: int
) -> tuple[dict[str, Completion], dict[str, Trace], Engine]:
    recorder, engine = Recorder(), Engine(tiny.loaded(MODEL), Limits(**limits))
    return {done.key: done for done in engine.run(batch, policy, recorder)}, recorder.traces, engine


def measured(entry: Any, prompt: int = 19, new: int = 48, units: Units | None = None, **sampling: float) -> Diagnostics:
    policy, request = parse_policy(entry), tiny.requests(tiny.prompts(prompt), new, **sampling)[0]
    done, traces, _ = recorded([request], policy)
    return diagnose(tiny.loaded(MODEL), policy, request, done["0"].tokens, traces["0"], units)


# A run is the same with a probe -------------------------------------------------------------------------------------


def test_a_probe_changes_nothing(policy: Policy) -> None:
    """Rows of different lengths that join and leave; greedy and sampled."""
    batch = tiny.requests(tiny.prompts(21, 5, 13, 9), new=30)
    batch += [Request(f"s{r.key}", r.prompt, tiny.Sampling(0.8, 0.9, 17), r.seed) for r in batch[:2]]
    plain = {done.key: done for done in Engine(tiny.loaded(MODEL), Limits(max_batch=3)).run(batch, policy)}
    probed, traces, _ = recorded(batch, policy, max_batch=3)
    assert {key: done.tokens for key, done in probed.items()} == {key: done.tokens for key, done in plain.items()}
    assert {key: done.ledger for key, done in probed.items()} == {key: done.ledger for key, done in plain.items()}
    for key, done in probed.items():
        last = list(traces[key].maps())[-1]
        counts = [int((last == tier).sum()) for tier in (DEVICE, HOST, QUANTISED, EVICTED)]
        held = [done.ledger.hbm_tokens, done.ledger.ddr_tokens, done.ledger.packed_tokens, done.ledger.evicted_tokens]
        assert counts == [4 * tokens for tokens in held]
        assert len(traces[key].hidden) == len(done.tokens)


def test_rows_that_start_again_are_recorded_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, real = [0], Lanes.open

    def short_of_memory(lanes: Lanes[Any]) -> LanesStep:
        calls[0] += 1
        if calls[0] == 5:
            raise torch.OutOfMemoryError
        return real(lanes)

    batch, policy = tiny.requests(tiny.prompts(9, 14), new=12), parse_policy({"name": "h2o", "budget": 0.5})
    expected, traces, _ = recorded(batch, policy)
    monkeypatch.setattr(Lanes, "open", short_of_memory)
    again, retraced, _ = recorded(batch, policy)
    for key in expected:
        assert again[key].tokens == expected[key].tokens
        assert all(torch.equal(a, b) for a, b in zip(traces[key].maps(), retraced[key].maps(), strict=True))


# Against numpy, on what a masking reference held ---------------------------------------------------------------------


class Remembering(oracle.Oracle):
    """Keeps what lived after each event."""

    def act(self) -> None:
        super().act()
        self.history = [*getattr(self, "history", []), {place: set(live) for place, live in self.live.items()}]


def numpy_values(
    attention: list[np.ndarray],
    values: list[np.ndarray],
    history: list[dict[tuple[int, int], set[int]]],
    prompt: int,
    policy: Policy,
    units: Units,
) -> dict[str, float]:
    """From whole attention matrices [query heads, n, n] of each layer, in loops over heads and steps."""
    group = attention[0].shape[0] // len({head for _, head in history[0]})
    steps, places = len(history) - 1, list(history[0])
    fmm, fmm_sinks, recall, error, churn = [], [], [], [], []
    lir_rows: list[list[int]] = []
    for layer, head in places:
        heads = attention[layer][head * group : (head + 1) * group]
        for t in range(steps):
            row, held = heads[:, prompt + t], sorted(history[t][layer, head] | {prompt + t})
            recall.append(row[:, held].sum(1).mean())
            exact = row @ values[layer][head]
            kept = row[:, held] / row[:, held].sum(1, keepdims=True) @ values[layer][head][held]
            error.append((np.linalg.norm(kept - exact, axis=1) / np.linalg.norm(exact, axis=1)).mean())
        looks = range(0, steps + 1, units.cycle)
        for s in looks:
            if s + units.horizon <= steps:
                future = heads[:, prompt + s : prompt + s + units.horizon].sum((0, 1))
                gone = sorted(set(range(prompt + s)) - history[s][layer, head])
                fmm_sinks.append(future[gone].sum() / future[: prompt + s].sum())
                gone = [i for i in gone if i >= units.sinks]
                fmm.append(future[gone].sum() / future[units.sinks : prompt + s].sum())
        settled = {
            s: set(range(units.sinks, prompt + s - recent_tokens(policy.placement, RowTiers(prompt, prompt + s))))
            for s in looks
        }
        for s in looks[1:]:
            a, b = (history[x][layer, head] & settled[x] for x in (s - units.cycle, s))
            churn.append(1 - len(a & b) / len(a | b) if a | b else 0.0)
        columns = []
        for s in looks[1:]:
            mass = heads[:, prompt + s - units.cycle : prompt + s].sum((0, 1))
            windows = {
                w: range(w * units.window, (w + 1) * units.window)
                for w in range((prompt + s) // units.window)
                if set(range(w * units.window, (w + 1) * units.window)) <= settled[s]
            }
            budget = round(sum(len(history[s][layer, head] & set(each)) for each in windows.values()) / units.window)
            best = sorted(windows, key=lambda w: (-mass[list(windows[w])].sum(), -w))[:budget]
            columns.append({w: int(w in best) for w in windows})
        for w in range((prompt + steps) // units.window):
            lir_rows.append([column.get(w, -1) for column in columns])
    lir = reactivation(lir_rows, units.patience, units.follow)
    means = {"fmm_acc": fmm, "fmm_acc_sinks": fmm_sinks, "recall": recall, "output_error": error, "churn": churn}
    found = {name: float(np.mean(each)) for name, each in means.items()}
    return {**found, "lir_rescued": lir.rescued, "lir_eligible": lir.eligible}


def full_pass(text: list[int]) -> tuple[list[np.ndarray], list[np.ndarray], np.ndarray]:
    """Attention [query heads, n, n] and values [KV heads, n, d] of each layer, logits [n, vocab]; nothing evicted."""
    model, n = tiny.tiny(MODEL), len(text)
    state = oracle.Oracle(parse_policy("full"), n, 0, 2, 2)
    state.begin(n)
    model.set_attn_implementation("oracle")
    try:
        with torch.inference_mode():
            out = model(torch.tensor([text]), position_ids=torch.arange(n)[None], use_cache=False, oracle=state)
    finally:
        model.set_attn_implementation("tiercache")
    attention = []
    for query, key in zip(state.queries, state.keys, strict=True):
        products = query[0].numpy() @ key[0].numpy().repeat(state.group, axis=0).transpose(0, 2, 1)
        weights = np.tril(np.exp(products / math.sqrt(query.shape[-1])))
        attention.append(weights / weights.sum(-1, keepdims=True))
    return attention, [each[0].numpy() for each in state.values], out.logits[0].numpy()


@pytest.mark.parametrize("name", EXACT)
def test_values_equal_plain_numpy(name: str) -> None:
    policy, model, new = parse_policy(tiny.POLICIES[name]), tiny.tiny(MODEL), 33
    request = tiny.requests(tiny.prompts(19), new)[0]
    expected, state = oracle.generate(model, policy, request.prompt, new, request.seed, Remembering)
    done, traces, _ = recorded([request], policy)
    assert list(done["0"].tokens) == expected
    for tiers, live in zip(traces["0"].maps(), state.history, strict=True):
        for (layer, head), tokens in live.items():
            assert set((tiers[layer, head] != EVICTED).nonzero().flatten().tolist()) == tokens

    attention, values, logits = full_pass([*request.prompt, *expected[:-1]])
    reference = numpy_values(attention, values, state.history, len(request.prompt), policy, SMALL)
    found = diagnose(tiny.loaded(MODEL), policy, request, expected, traces["0"], SMALL, chunk=10)
    for key, value in reference.items():
        # The model's norms compute in float32, so the last digits depend on how a text is cut into chunks.
        assert getattr(found, key) == pytest.approx(value, abs=1e-6), key
    assert found.fmm_fp == found.fmm_acc, "nothing is quantised"

    logits = logits[len(request.prompt) - 1 :]
    own = model.lm_head(state.hidden[-1][0, len(request.prompt) - 1 :]).detach().numpy()
    p, q = (np.exp(x - x.max(1, keepdims=True)) for x in (logits, own))
    p, q = p / p.sum(1, keepdims=True), q / q.sum(1, keepdims=True)
    assert found.kl == pytest.approx(float((p * np.log(p / q)).sum(1)[1:].mean()), abs=1e-6)
    differing = [t for t in range(new) if logits[t].argmax() != expected[t]]
    assert found.first_divergent == (differing[0] if differing else None)


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.9, "top_p": 0.9}], ids=["greedy", "sampled"])
@pytest.mark.parametrize("name", ["hierarchy", "h2o-tokens", "random-head"])
def test_the_first_divergent_token_is_that_of_a_full_run(name: str, sampling: dict[str, float]) -> None:
    request = tiny.requests(tiny.prompts(19), 48, **sampling)[0]
    pair = [tiny.generate(tiny.loaded(MODEL), [request], entry)[0].tokens for entry in ("full", tiny.POLICIES[name])]
    differing = [t for t, (a, b) in enumerate(zip(*pair, strict=True)) if a != b]
    assert differing, "the test needs a policy that changes the text"
    assert measured(tiny.POLICIES[name], **sampling).first_divergent == differing[0]


# What the definitions promise ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_the_full_cache_misses_nothing(family: str) -> None:
    request = tiny.requests(tiny.prompts(19), 48)[0]
    recorder, loaded = Recorder(), tiny.loaded(family)
    done = next(Engine(loaded).run([request], parse_policy("full"), recorder))
    found = diagnose(loaded, parse_policy("full"), request, done.tokens, recorder.traces["0"])
    assert (found.fmm_acc, found.fmm_fp, found.fmm_acc_sinks, found.fmm_fp_sinks) == (0, 0, 0, 0)
    assert (found.recall, found.output_error, found.first_divergent) == (1, 0, None)
    assert found.kl == pytest.approx(0, abs=1e-12)
    assert (found.lir_eligible, found.lir) == (0, None), "everything is selected: nothing ever looks dead"


def test_offloading_alone_misses_nothing() -> None:
    found = measured(OFFLOAD)
    assert (found.fmm_acc, found.fmm_fp, found.recall, found.output_error, found.first_divergent) == (0, 0, 1, 0, None)
    assert found.kl == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("more", [{}, {"key_axis": "channel", "window": 4, "packed_bits": 2}], ids=["token", "channel"])
def test_quantised_tokens_are_accessible_but_not_exact(more: dict[str, Any]) -> None:
    found = measured({**OFFLOAD, "packed": 0.6, **more})
    assert (found.fmm_acc, found.recall) == (0, 1)
    assert found.fmm_fp is not None
    assert 0.05 < found.fmm_fp <= 1
    assert found.output_error is not None
    assert 0 < found.output_error < 1


def test_more_bits_less_output_error() -> None:
    errors = [measured({**OFFLOAD, "packed": 0.6, "packed_bits": bits}).output_error for bits in (8, 4, 2)]
    assert errors == sorted(errors)
    assert errors[0] < errors[2] / 10


def test_tokens_of_two_formats_are_read_back_in_their_own() -> None:
    """Nothing shrinks, so all error is that of quantising; with 2 bits for transitions it is larger, with 8 small."""
    entry = {"name": "thinkv", "budget": 1.0, "segment": 8, "faint": 0.1, "transition_above": 0.5, "pin_prompt": True}
    found = [
        measured({**entry, "ladder": [1_000], "packed_bits": 8, "transition_bits": bits}) for bits in (8, 4, 2, None)
    ]
    errors = [each.output_error for each in found]
    assert errors[0] == errors[3] < errors[1] < errors[2]
    assert [each.fmm_acc for each in found] == [0] * 4
    assert found[0].fmm_fp is not None
    assert found[0].fmm_fp > 0.05


def test_everything_evicted_is_all_missed() -> None:
    request = tiny.requests(tiny.prompts(10), 48)[0]
    done, traces, _ = recorded([request], parse_policy("full"))
    nothing = Trace(10)
    for tiers, hidden in zip(traces["0"].maps(), traces["0"].hidden, strict=True):
        tiers = tiers.clone()
        tiers[..., 4:] = EVICTED
        nothing.add(tiers, hidden)
    found = diagnose(tiny.loaded(MODEL), parse_policy("full"), request, done["0"].tokens, nothing)
    assert (found.fmm_acc, found.fmm_fp) == (1, 1)
    assert found.fmm_acc_sinks is not None
    assert found.fmm_acc_sinks < 1
    assert found.churn == 0


def test_the_tail_is_censored_and_later_tokens_do_not_count() -> None:
    """Looks at 0 and 8 see 32 more steps in a text of 40 steps and of 47: the same number. 31 steps have none."""
    found = {steps: measured({"name": "h2o", "budget": 16}, new=steps + 1) for steps in (31, 40, 47)}
    assert found[31].fmm_acc is None
    assert found[31].recall is not None
    assert found[40].fmm_acc == pytest.approx(found[47].fmm_acc, abs=1e-12)
    assert found[40].recall != pytest.approx(found[47].recall)


def test_one_token_says_nothing() -> None:
    found = measured({"name": "h2o", "budget": 16}, new=1)
    assert found.steps == 0
    assert (found.fmm_acc, found.churn, found.recall, found.kl, found.lir) == (None,) * 5
    assert found.first_divergent is None


@pytest.mark.parametrize("name", tiny.POLICIES)
def test_shares_lie_between_0_and_1(name: str) -> None:
    found = measured(tiny.POLICIES[name], new=60, units=SMALL)
    for value in (found.fmm_acc, found.fmm_fp, found.fmm_acc_sinks, found.churn, found.recall, found.lir or 0.0):
        assert value is not None
        assert -1e-12 <= value <= 1 + 1e-12
    assert found.kl is not None
    assert found.kl >= -1e-12
    assert all(len(each) == 2 for each in found.detail["layers"].values())
    assert set(found.detail["layers"]) == {
        "fmm_acc",
        "fmm_fp",
        "fmm_acc_sinks",
        "fmm_fp_sinks",
        "churn",
        "recall",
        "error",
    }


def test_every_number_has_a_meaning() -> None:
    fields = set(Diagnostics.__dataclass_fields__) - {"steps", "detail", "lir_rescued", "lir_eligible"}
    assert set(MEANING) == fields | {"lir"}


def test_a_policy_that_changes_attention_alone_shows_in_kl_only() -> None:
    """Drifted positions: nothing is evicted by then, so the sets are whole and the text isn't."""
    entry = {"name": "h2o", "budget": 16, "positions": "drifted"}
    drifted, true = measured(entry), measured({**entry, "positions": "true"})
    assert drifted.kl is not None
    assert true.kl is not None
    assert drifted.kl != pytest.approx(true.kl)
