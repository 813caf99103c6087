"""The queue: every sample is handed out, taken back once, and never lost, whatever dies."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.grid import Cell, expand
from jobs.spec import parse_sweep
from jobs.work_queue import Sample, WorkQueue, samples_of


def cells(n: int = 10, repeats: int = 1) -> list[Cell]:
    return expand(
        parse_sweep(
            {
                "name": "t",
                "models": ["reasoner"],
                "benchmarks": [{"name": "chain", "n": n}],
                "policies": ["full", {"name": "h2o", "budget": 0.5}],
                "repeats": repeats,
            }
        )
    )


def queue_of(
    n: int = 10, shard_size: int = 4, max_attempts: int = 3, repeats: int = 1
) -> tuple[WorkQueue, list[Sample]]:
    groups = [samples_of(cell) for cell in cells(n, repeats)]
    return WorkQueue(groups, shard_size, max_attempts), [sample for group in groups for sample in group]


def test_shards_are_even_and_of_one_cell() -> None:
    queue, samples = queue_of(n=10, shard_size=4)
    sizes = []
    while queue.has_waiting():
        cell = queue.peek()
        shard = queue.next_shard()
        assert shard.policy == cell.policy
        sizes.append(len(shard.tasks))
    assert sizes == [3, 3, 4, 3, 3, 4]
    assert sum(sizes) == len(samples)


def test_seeds_are_the_same_for_every_policy_and_differ_by_problem_and_repeat() -> None:
    _, samples = queue_of(n=3, repeats=2)
    by_cell = [samples[:6], samples[6:]]
    assert [s.seed for s in by_cell[0]] == [s.seed for s in by_cell[1]]
    assert len({s.seed for s in by_cell[0]}) == 6


def test_a_sample_that_kills_its_engine_runs_alone_on_its_last_attempt() -> None:
    queue, _ = queue_of(n=4, shard_size=4, max_attempts=3)
    poison = None
    tried = 0
    given_up: list[str] = []
    done = 0
    while not queue.finished():
        shard = queue.next_shard()
        poison = poison or shard.tasks[0].key
        first_cell = shard.policy.name == "full"
        if first_cell and poison in [task.key for task in shard.tasks]:
            tried += 1
            given_up += [sample.key for sample in queue.lost(shard, blamed=True)]
            if tried == 3:
                assert len(shard.tasks) == 1
        else:
            for task in shard.tasks:
                assert queue.arrived(shard, task.key) is not None
                done += 1
            queue.ended(shard)
    assert (given_up, tried, done) == ([poison], 3, 7)


def test_waiting_behind_the_one_to_blame_costs_no_attempt() -> None:
    queue, _ = queue_of()
    shard = queue.next_shard()
    for _ in range(10):
        assert queue.lost(shard, blamed=False) == []
        shard = queue.next_shard()
    sample = queue.arrived(shard, shard.tasks[0].key)
    assert sample is not None
    assert queue.attempt(sample) == 1


def test_a_result_counts_once() -> None:
    queue, samples = queue_of()
    shard = queue.next_shard()
    assert queue.arrived(shard, shard.tasks[0].key) is not None
    assert queue.arrived(shard, shard.tasks[0].key) is None
    assert queue.remaining == len(samples) - 1


def test_a_shard_that_ends_with_samples_missing_is_a_bug() -> None:
    queue, _ = queue_of()
    with pytest.raises(AssertionError, match="without"):
        queue.ended(queue.next_shard())


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), n=st.integers(1, 12), size=st.integers(1, 5), attempts=st.integers(1, 4))
def test_whatever_dies_every_sample_ends_exactly_once(seed: int, n: int, size: int, attempts: int) -> None:
    rng = random.Random(seed)
    queue, samples = queue_of(n, size, attempts)
    ended: list[tuple[str, str]] = []
    out = []
    steps = 0
    while not queue.finished():
        steps += 1
        assert steps < 10_000, "the queue never ends"
        if queue.has_waiting() and (len(out) < 2 or rng.random() < 0.3):
            cell = queue.peek().fingerprint
            out.append((cell, queue.next_shard()))
            continue
        cell, shard = out.pop(rng.randrange(len(out)))
        arrived = [task.key for task in shard.tasks if rng.random() < 0.7]
        for key in arrived:
            assert queue.arrived(shard, key) is not None
            ended.append((cell, key))
        if len(arrived) == len(shard.tasks):
            queue.ended(shard)
        else:
            ended.extend((cell, sample.key) for sample in queue.lost(shard, blamed=rng.random() < 0.8))
        if rng.random() < 0.1:  # all workers are ended on purpose
            queue.recall()
            out = []
        assert queue.left.total() == queue.remaining == len(samples) - len(ended)
        assert all(number > 0 for number in queue.left.values())
    assert sorted(ended) == sorted((s.cell.fingerprint, s.key) for s in samples)


def test_a_cell_that_another_takes_over_is_dropped_but_for_what_is_out() -> None:
    queue, _ = queue_of(n=10, shard_size=4)
    first = queue.peek().fingerprint
    out = queue.next_shard()
    assert queue.drop({first}) == 10 - len(out.tasks)
    assert queue.remaining == 10 + len(out.tasks)
    for task in out.tasks:
        queue.arrived(out, task.key)
    queue.ended(out)
    assert first not in queue.left
    assert queue.peek().fingerprint != first


def test_cells_compare_by_fingerprint() -> None:
    first = cells()[0]
    assert replace(first, n=3) == first
