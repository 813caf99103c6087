"""Which samples count for a sweep, against the rule written out in Python; and numbers of part of a store."""

import random
from collections import defaultdict

import pytest
from sqlalchemy import select

from db import queries
from db.counted import samples_of


def counting(stored, expected, repeats):
    """The rule: of each cell and repeat the first problems, as many as the sweep's expected samples come to."""
    found = set()
    for fingerprint, samples in stored.items():
        by_repeat = defaultdict(list)
        for problem, repeat in samples:
            if repeat < repeats:
                by_repeat[repeat].append(problem)
        for repeat, problems in by_repeat.items():
            for rank, problem in enumerate(sorted(problems), start=1):
                if rank * repeats <= expected[fingerprint]:
                    found.add((fingerprint, problem, repeat))
    return found


def ask(engine, *selection, **more):
    source = samples_of(*selection, ("fingerprint", "problem_id", "repeat"), **more)
    with engine.connect() as connection:
        rows = [tuple(row) for row in connection.execute(select(source))]
    assert len(rows) == len(set(rows))
    return set(rows)


@pytest.mark.parametrize("seed", range(4))
def test_a_sweep_counts_the_first_problems_of_each_repeat(writer, make_cell, make_sample, seed):
    draw = random.Random(seed)
    names, repeats = "abcdef", draw.choice([1, 2, 3])
    expected = {name: draw.choice([0, 1, 2, 5, 6, 12, 40]) for name in names}
    cells = [make_cell(name, expected[name]) for name in names]
    writer.register_sweep("s", "s", {"repeats": repeats}, {}, cells[:5])
    writer.register_sweep("other", "other", {"repeats": 9}, {}, cells[3:])
    stored = {}
    for name in names:
        everything = [(f"{problem:02}", repeat) for problem in range(12) for repeat in range(4)]
        stored[name] = draw.sample(everything, draw.randrange(0, 40))
        writer.record([make_sample(name, problem, repeat) for problem, repeat in stored[name]])
    own = {name: stored[name] for name in names[:5]}
    assert ask(writer.engine, "s") == counting(own, expected, repeats)
    assert ask(writer.engine, None) == {(name, *key) for name in names for key in stored[name]}
    assert ask(writer.engine, "unknown") == set()


def test_a_sweep_that_says_nothing_of_repeats_has_one(writer, make_sample):
    writer.record([make_sample(repeat=repeat) for repeat in range(3)])
    assert ask(writer.engine, "s") == {("a", "1", 0)}


def test_numbers_of_one_model_and_benchmark_are_those_among_all(writer, make_cell, make_sample, make_shard):
    places = [("m1", "b1"), ("m1", "b2"), ("m2", "b1"), ("m2", "b2")]
    cells = [make_cell(f"c{i}", 3, model=model, benchmark=name) for i, (model, name) in enumerate(places * 2)]
    writer.register_sweep("s", "s", {}, {}, cells)
    for number, cell in enumerate(cells):
        writer.record([make_sample(cell.fingerprint, str(problem)) for problem in range(number)])
        writer.record_shard(make_shard(f"x{number}", cell.fingerprint, device=f"device {number % 3}"))
    for sweep_id in ("s", None):
        everything = queries.cell_summaries(writer.engine, sweep_id)
        assert len(everything) == (8 if sweep_id else 10)  # "a" and "b" are of no sweep any more
        for model, benchmark in [*places, ("m1", None), (None, "b2"), ("nothing", "like it"), (None, None)]:
            part = queries.cell_summaries(writer.engine, sweep_id, model=model, benchmark=benchmark)
            assert part == [c for c in everything if model in (None, c.model) and benchmark in (None, c.benchmark)]


def test_cells_are_listed_in_the_order_of_their_summaries(writer, make_cell):
    writer.register_sweep("s", "s", {}, {}, [make_cell(name, model=name) for name in "cab"])
    writer.register_sweep("empty", "s", {}, {}, [])
    for sweep_id in ("s", None, "empty", "unknown"):
        listed = queries.list_cells(writer.engine, sweep_id)
        assert [cell.fingerprint for cell in listed] == [
            cell.fingerprint for cell in queries.cell_summaries(writer.engine, sweep_id)
        ]
    first = queries.list_cells(writer.engine, "s")[0]
    assert (first.fingerprint, first.model, first.policy) == ("c", "c", "policy c")
