"""Who gets how many workers: what takes longest ends soonest, and nothing is put where it doesn't fit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.allot import Demand, allot
from cluster.preflight import Node

SMALL, LARGE = Node(8, 1), Node(64, 8)


def test_a_single_model_takes_what_there_is_and_what_it_can_use() -> None:
    assert allot([LARGE, SMALL], [Demand(1, 1, shards=100, work=1)]) == [9]
    assert allot([LARGE], [Demand(1, 1, shards=3, work=1)]) == [3]
    assert allot([LARGE], [Demand(1, 1, shards=100, work=1)], most=2) == [2]
    assert allot([LARGE], [Demand(1, 1, shards=0, work=0)]) == [0]


def test_room_is_shared_by_work() -> None:
    large, small = allot([LARGE], [Demand(1, 1, 100, work=300), Demand(1, 1, 100, work=100)])
    assert (large, small) == (6, 2)


def test_a_worker_is_on_one_node() -> None:
    assert allot([SMALL, SMALL, SMALL, SMALL], [Demand(1, 4, 10, 1)]) == [0]
    assert allot([LARGE, SMALL], [Demand(1, 4, 10, 1)]) == [2]


def test_large_and_small_models_side_by_side() -> None:
    """Four GPUs for the one, single ones for the other: small workers fill small nodes first."""
    assert allot([LARGE, SMALL], [Demand(4, 4, 2, work=100), Demand(1, 1, 50, work=10)]) == [2, 1]


def test_a_model_without_room_waits_for_the_other() -> None:
    both = [Demand(1, 1, 5, work=100), Demand(1, 1, 5, work=1)]
    assert allot([SMALL], both) == [1, 0]
    assert allot([SMALL], [Demand(1, 1, 0, work=0), both[1]]) == [0, 1]


def test_alone_is_one_worker_a_node() -> None:
    assert allot([LARGE, LARGE, SMALL], [Demand(1, 1, 100, 5), Demand(1, 1, 100, 5)], alone=True) == [2, 1]


demands = st.lists(
    st.builds(
        Demand, st.sampled_from([1.0, 4.0]), st.sampled_from([0.0, 1.0, 4.0]), st.integers(0, 9), st.floats(0, 99)
    ),
    max_size=4,
)


@given(st.lists(st.sampled_from([SMALL, LARGE, Node(4, 0)]), max_size=4), demands, st.booleans())
def test_no_more_than_there_is_and_nobody_starves_beside_free_room(
    nodes: list[Node], wanted: list[Demand], alone: bool
) -> None:
    sizes = allot(nodes, wanted, alone=alone)
    assert all(0 <= size <= demand.shards for size, demand in zip(sizes, wanted, strict=True))
    for unit in ("cpus", "gpus"):
        used = sum(size * getattr(demand, unit) for size, demand in zip(sizes, wanted, strict=True))
        assert used <= sum(getattr(node, unit) for node in nodes) + 1e-9
    if alone:
        assert sum(sizes) <= len(nodes)
    if sum(sizes) == 0:
        fits = [
            demand
            for demand in wanted
            if demand.shards and any(n.cpus >= demand.cpus and n.gpus >= demand.gpus for n in nodes)
        ]
        assert not fits


@pytest.mark.parametrize("gpus", [1000])
def test_a_thousand_gpus_are_dealt_out_quickly(gpus: int) -> None:
    import time

    wanted = [Demand(1, 1, 10_000, float(work)) for work in (7, 8, 14, 32)]
    started = time.monotonic()
    assert sum(allot([LARGE] * (gpus // 8), wanted)) == gpus
    assert time.monotonic() - started < 5
