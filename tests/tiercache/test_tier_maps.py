"""Tier maps while a sequence runs: they say what a full trace says, add up to the ledger, and change nothing."""

from typing import Any

import numpy as np
import pytest
import tiny
import torch

from tiercache.catalog import SIGNALS
from tiercache.diagnostics import map_recorder
from tiercache.diagnostics.map_recorder import EVERY, MapRecorder
from tiercache.diagnostics.tier_record import DDR, EVICTED, HBM, PACKED, SERIES, TierRecord
from tiercache.diagnostics.trace import Recorder
from tiercache.engine import Engine, Limits
from tiercache.errors import PolicyError
from tiercache.lanes import Lanes, LanesStep
from tiercache.policy import Policy, parse_policy
from tiercache.requests import Completion, Request
from tiercache.scorers.recency import Recency

MODEL = "llama"
CODE = {0: HBM, 1: DDR, 2: PACKED, 3: PACKED, -1: EVICTED}


def mapped(
    batch: list[Request], entry: Any, keys: tuple[str, ...] = ("0", "1"), **limits: int
) -> tuple[dict[str, Completion], dict[str, TierRecord], Recorder]:
    policy = entry if isinstance(entry, Policy) else parse_policy(entry)
    full = Recorder()
    recorder = MapRecorder(policy, keys, full)
    engine = Engine(tiny.loaded(MODEL), Limits(**limits))
    done = {each.key: each for each in engine.run(batch, policy, recorder)}
    prompts = {each.key: len(each.prompt) for each in batch}
    return done, {key: recorder.pop(key, prompts[key] + len(done[key].tokens)) for key in keys}, full


def test_a_map_is_the_trace_at_its_looks(policy: Policy) -> None:
    batch = tiny.requests(tiny.prompts(21, 5, 13), new=30)
    plain = {done.key: done for done in Engine(tiny.loaded(MODEL), Limits(max_batch=2)).run(batch, policy)}
    done, records, full = mapped(batch, policy, max_batch=2)
    assert {key: each.tokens for key, each in done.items()} == {key: each.tokens for key, each in plain.items()}
    assert {key: each.ledger for key, each in done.items()} == {key: each.ledger for key, each in plain.items()}
    for key, record in records.items():
        maps = [each.clone().numpy() for each in full.traces[key].maps()]
        assert (record.steps[0], record.steps[-1]) == (0, len(done[key].tokens) - 1)
        stride = policy.schedule.every if policy.acts and policy.schedule.every > 1 else EVERY
        assert all(step % stride == 0 for step in record.steps[:-1])
        for i, step in enumerate(record.steps):
            there = maps[step]  # [layers, kv_heads, seen]
            seen = there.shape[-1]
            assert record.seen[i] == seen
            assert np.allclose(record.held[i, :seen], (there >= 0).mean((0, 1)))
            for layer in range(record.layers):
                for token in range(seen):
                    assert record.tiers[i, layer, token] == commonest(there[layer, :, token])
            assert [commonest(there[:, :, token].ravel()) for token in range(seen)] == record.overall[i, :seen].tolist()
            assert not record.overall[i, seen:].any()


def commonest(tiers: "np.ndarray[Any, Any]") -> int:
    codes = [CODE[int(tier)] for tier in tiers]
    return max(sorted(set(codes)), key=codes.count)


def test_bytes_add_up_to_the_ledger(policy: Policy) -> None:
    done, records, _ = mapped(tiny.requests(tiny.prompts(21, 9), new=40), policy)
    for key, record in records.items():
        ledger, series = done[key].ledger, record.series
        assert set(series) == set(SERIES)
        assert len(series["full"]) == len(done[key].tokens)  # the prefill, and each decode step
        for name, mean in (
            ("hbm", ledger.hbm_bytes_mean),
            ("ddr", ledger.ddr_bytes_mean),
            ("packed", ledger.packed_bytes_mean),
            ("full", ledger.full_bytes_mean),
        ):
            assert series[name][1:].mean() == pytest.approx(mean)
        assert series["evicted"][-1] == ledger.evicted_bytes_end
        assert series["full"][-1] == ledger.full_bytes_end
        assert (np.diff(series["evicted"]) >= 0).all()
        assert (np.diff(series["to_host"]) >= 0).all()


def test_bytes_moved_are_those_of_the_tokens_that_moved() -> None:
    entry = {"name": "hierarchy", "hbm": 0.3, "evict": 0.1, "every": 8, "recent": 8}
    _, records, full = mapped(tiny.requests(tiny.prompts(21, 9), new=60), entry)
    for key, record in records.items():
        up = down = 0
        before = None
        for now in full.traces[key].maps():
            was = (
                np.zeros(now.shape)
                if before is None
                else np.pad(before, [(0, 0), (0, 0), (0, now.shape[-1] - before.shape[-1])])
            )
            down += int(((now.numpy() == 1) & (was != 1)).sum())
            up += int(((now.numpy() == 0) & (was == 1)).sum())
            before = now.clone().numpy()
        moved = record.series["to_host"][-1], record.series["to_device"][-1]
        each = record.series["full"][0] / record.seen[0] / (record.layers * record.kv_heads)
        assert down > 0
        assert moved[0] / down == pytest.approx(moved[1] / up if up else moved[0] / down)
        assert each <= moved[0] / down < each + 64, "keys, values, and what is kept beside them"


def test_of_others_nothing_is_written_down() -> None:
    batch = tiny.requests(tiny.prompts(9, 14, 7), new=12)
    policy = parse_policy({"name": "h2o", "budget": 0.5})
    recorder = MapRecorder(policy, ["1"])
    list(Engine(tiny.loaded(MODEL), Limits()).run(batch, policy, recorder))
    assert recorder.pop("1", 26).prompt == 14
    for key in ("0", "2"):
        with pytest.raises(KeyError):
            recorder.pop(key, 20)


def test_importance_is_the_score_where_a_token_may_move() -> None:
    """Recency ranks by position; the sinks and the newest are protected."""
    _, records, _ = mapped(
        tiny.requests(tiny.prompts(20, 9), new=40),
        {"name": "streaming", "budget": 24, "positions": "true", "recent": 6, "every": 4},
    )
    record = records["0"]
    assert record.importance is not None
    found = 0
    for i, seen in enumerate(record.seen):
        for token, score in enumerate(record.importance[i]):
            may_move = 4 <= token < seen - 6 and record.overall[i, token] != EVICTED
            assert np.isfinite(score) == may_move
            if may_move:
                found += 1
                assert score == token
    assert found > 50


@pytest.mark.parametrize("scorer", [name for name in SIGNALS if name != "thinkv"])
def test_looking_at_scores_leaves_no_trace(scorer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scorers that remember at each event, or look at keys or queries: asked at each step, they forget it again."""
    monkeypatch.setattr(map_recorder, "_stride", lambda policy: 1)
    policy = parse_policy(
        {"name": "h2o", "budget": 20, "recent": 4, "recent_share": None, "every": 5, "scorer": scorer}
    )
    batch = tiny.requests(tiny.prompts(21, 9), new=36)
    plain = {done.key: done.tokens for done in Engine(tiny.loaded(MODEL), Limits()).run(batch, policy)}
    done, records, _ = mapped(batch, policy)
    assert {key: each.tokens for key, each in done.items()} == plain
    assert len(records["0"].steps) == 36
    assert records["0"].importance is not None
    assert np.isfinite(records["0"].importance[-1]).sum() > 10


def test_without_a_score_the_reason_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = tiny.requests(tiny.prompts(9, 14), new=12)
    _, records, _ = mapped(batch, "full")
    assert records["0"].importance is None
    assert records["0"].no_importance == "the policy never moves a token, so it ranks none"
    _, records, _ = mapped(batch, {"name": "h2o", "budget": 500, "recent": 400})
    assert records["0"].no_importance == "at no look was there a token that might leave its tier"

    def refuse(*_: object) -> None:
        raise PolicyError("scorer: Mine.score raised")

    monkeypatch.setattr(Recency, "score", refuse)
    done, records, _ = mapped(batch, {"name": "streaming", "budget": 1000, "positions": "true"})
    assert records["0"].no_importance == "scorer: Mine.score raised"
    assert len(done) == 2, "what only looks doesn't end a run"


def test_a_long_sequence_has_fewer_looks_and_still_its_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(map_recorder, "MOST_LOOKS", 6)
    _, records, _ = mapped(tiny.requests(tiny.prompts(9, 14), new=150), {"name": "h2o", "budget": 0.5})
    assert records["0"].steps.tolist() == [0, 32, 64, 96, 128, 149]
    assert len(records["0"].series["hbm"]) == 150, "bytes are kept for every step"


def test_few_bytes_in_memory_mean_fewer_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(map_recorder, "MOST_BYTES", 4000)
    _, records, _ = mapped(tiny.requests(tiny.prompts(9, 14), new=150), {"name": "h2o", "budget": 0.5})
    steps = records["0"].steps
    assert 2 <= len(steps) < 10
    assert (steps[0], steps[-1]) == (0, 149)


def test_one_token_is_one_look() -> None:
    _, records, _ = mapped(tiny.requests(tiny.prompts(9, 14), new=1), {"name": "h2o", "budget": 0.5})
    assert records["0"].steps.tolist() == [0]
    assert records["0"].tiers.shape[-1] == 10, "the output's token too, which is never written"


def test_rows_that_start_again_are_written_down_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, real = [0], Lanes.open

    def short_of_memory(lanes: Lanes[Any]) -> LanesStep:
        calls[0] += 1
        if calls[0] == 12:
            raise torch.OutOfMemoryError
        return real(lanes)

    batch, entry = tiny.requests(tiny.prompts(9, 14), new=20), {"name": "h2o", "budget": 0.5}
    _, expected, _ = mapped(batch, entry)
    monkeypatch.setattr(Lanes, "open", short_of_memory)
    _, again, _ = mapped(batch, entry)
    assert calls[0] > 20
    for key in ("0", "1"):
        assert (again[key].tiers == expected[key].tiers).all()
        assert (again[key].series["hbm"] == expected[key].series["hbm"]).all()
