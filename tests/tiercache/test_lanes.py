"""Lanes: no row pays for a much longer neighbour, and none notices in which lane it runs."""

import pytest
from tiny import loaded, prompts, requests

from tiercache import lanes as module
from tiercache.cache import TieredCache
from tiercache.engine import Engine, Limits
from tiercache.lanes import FEW, LIKE, Lanes
from tiercache.policy import parse_policy
from tiercache.requests import Completion, Request

POLICIES = {
    "full": "full",
    "h2o": {"name": "h2o", "budget": 0.5},
    "tova holes": {"name": "tova", "budget": 20},
    "fixed": {"name": "streaming", "budget": 24, "positions": "rerotated"},
    "hierarchy": {"name": "hierarchy", "hbm": 0.5, "evict": 0.1, "every": 4, "recent": 6},
    "qevict": {"name": "qevict", "budget": {"bytes": 0.5}, "window": 2, "every": 4},
    "epikv": {"name": "epikv", "budget": 0.5},
    "snapkv": {"name": "snapkv_d", "budget": 20, "queries": 4, "recent": 4, "every": 3},
    "quest": {"name": "quest", "pages": 4, "read_budget": 12, "dense_layers": 0},
    "adakv": {"name": "adakv", "budget": 0.5, "every": 3},
    "random": {"name": "random", "budget": 16, "pin_prompt": False},
}
LENGTHS = (60, 5, 33, 7, 120, 64, 9, 61)


class Watch:
    """A probe: the number of lanes, and the waste, at each step."""

    def __init__(self) -> None:
        self.lanes: set[int] = set()
        self.rows: list[tuple[int, int]] = []

    def __call__(self, cache: TieredCache, first: int, keys: object, hidden: object) -> None:
        self.lanes.add(id(cache))
        live = [tiers.live for tiers in cache.tiers]
        self.rows.append((min(live), max(live)))


def run(batch: list[Request], policy: object, watch: Watch | None = None, **limits: int) -> dict[str, Completion]:
    engine = Engine(loaded("llama"), Limits(**limits))
    return {c.key: c for c in engine.run(batch, parse_policy(policy), watch)}  # type: ignore[arg-type]


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
@pytest.mark.parametrize("most", [8, 2, 1])
def test_rows_are_the_same_in_any_lane_and_alone(policy: object, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lanes form, take new rows, merge when they have become alike, and end."""
    monkeypatch.setattr(module, "MOST", most)
    monkeypatch.setattr(module, "FEW", 3)
    batch = requests(prompts(*LENGTHS), new=30)
    watch = Watch()
    together = run(batch, policy, watch, max_batch=5)
    one = most == 1 or parse_policy(policy).placement.ragged  # type: ignore[arg-type]
    assert one or len(watch.lanes) > 1
    for request in batch:
        alone = run([request], policy)[request.key]
        assert together[request.key].tokens == alone.tokens
        assert together[request.key].ledger == alone.ledger


def test_rows_of_a_lane_are_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 99)
    batch = requests(prompts(*range(8, 400, 13)), new=12)
    watch = Watch()
    run(batch, "full", watch)
    assert all(longest <= max(LIKE * shortest, shortest + FEW) for shortest, longest in watch.rows)
    assert 5 < len(watch.lanes) < 20


def test_lanes_become_one_where_a_budget_makes_rows_equally_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FEW", 2)
    counts = []
    original = Lanes.open

    def counted(self: Lanes) -> object:  # type: ignore[type-arg]
        step = original(self)
        counts.append(len(list(self)))
        return step

    monkeypatch.setattr(Lanes, "open", counted)
    run(requests(prompts(8, 40, 80), new=60), {"name": "streaming", "budget": 48, "positions": "true"})
    assert counts[0] == 3
    assert counts[-1] == 1


def test_allocation_and_traffic_are_of_all_lanes() -> None:
    """A peak is of all lanes at one time, and what a lane moved stays counted when it has ended."""
    loaded_ = loaded("llama")
    policy = {"name": "hierarchy", "hbm": 0.5, "evict": 0.1, "every": 4, "recent": 6}
    batch = requests(prompts(8, 200), new=30)
    moved = []
    for some in (batch[:1], batch[1:], batch):
        engine = Engine(loaded_)
        list(engine.run(some, parse_policy(policy)))
        assert engine.stats is not None
        moved.append((engine.stats.bytes_to_host, engine.stats.bytes_to_device, engine.stats.allocated_bytes_peak))
    assert moved[2][:2] == (moved[0][0] + moved[1][0], moved[0][1] + moved[1][1])
    assert max(moved[0][2], moved[1][2]) < moved[2][2]
