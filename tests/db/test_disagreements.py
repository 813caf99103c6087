"""The samples behind the counts of a paired difference."""

import pytest

from db.disagreements import count_disagreements, list_disagreements
from db.paired import paired_deltas

HERE = ["correct", "correct", "wrong", "truncated", "failed", "wrong", "no_answer"]
THERE = ["correct", "wrong", "correct", "correct", "correct", "failed", "wrong"]


@pytest.fixture
def engine(writer, make_sample):
    writer.record([make_sample("a", str(i), outcome=outcome) for i, outcome in enumerate(HERE)])
    writer.record([make_sample("b", str(i), outcome=outcome) for i, outcome in enumerate(THERE)])
    writer.record([make_sample("a", "alone", outcome="wrong"), make_sample("a", "0", repeat=1, outcome="wrong")])
    return writer.engine


def problems(engine, kind, **page):
    return [sample.problem_id for sample in list_disagreements(engine, "a", "b", kind, **page)]


def test_only_one_of_both_is_right_on_the_same_problem_and_repeat(engine):
    assert problems(engine, "lost") == ["2", "3"]
    assert problems(engine, "gained") == ["1"]


def test_counts_are_those_of_the_paired_difference(engine):
    delta = paired_deltas(engine, "b", ["a"])["a"]
    assert count_disagreements(engine, "a", "b", "lost") == delta.lost
    assert count_disagreements(engine, "a", "b", "gained") == delta.gained
    assert count_disagreements(engine, "b", "a", "lost") == delta.gained


def test_pages_and_search(engine, writer, make_sample):
    assert problems(engine, "lost", limit=1, offset=1) == ["3"]
    writer.record([make_sample("a", "9", outcome="wrong", output="100%_odd"), make_sample("b", "9")])
    assert problems(engine, "lost", search="%_ODD") == ["9"]
    assert count_disagreements(engine, "a", "b", "lost", "%_odd") == 1
    assert problems(engine, "lost", search="nothing like it") == []


def test_a_cell_agrees_with_itself_and_with_nobody(engine):
    for baseline in ("a", "unknown"):
        assert count_disagreements(engine, "a", baseline) == 0
        assert list_disagreements(engine, "a", baseline) == []
