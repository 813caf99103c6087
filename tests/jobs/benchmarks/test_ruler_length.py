"""Samples have the length they are asked for, in few counts, and depend on nothing but their seed."""

import math
import random
import re
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.benchmarks.ruler import TASKS, make_samples
from tiercache.errors import BenchmarkError

_TOKEN = re.compile(r"\w+|[^\w\s]")


def words(text: str) -> int:
    return len(_TOKEN.findall(text))


def quarters(text: str) -> int:
    return math.ceil(len(text) / 4)


def with_template(text: str) -> int:
    return 37 + quarters(text)


COUNTERS = (words, quarters, with_template)
GENERATED = [name for name, task in TASKS.items() if task.family != "qa"]
generated = pytest.mark.parametrize("task", GENERATED)


@generated
@pytest.mark.parametrize("count", COUNTERS)
@pytest.mark.parametrize("length", [512, 1024, 4096])
def test_samples_are_as_long_as_asked_for(task: str, count: Callable[[str], int], length: int) -> None:
    if task == "cwe" and length == 512:
        pytest.skip("ten words six times and an example are longer")
    lengths = []

    def counted(text: str) -> int:
        lengths.append(len(text))
        return count(text)

    samples = make_samples(task, counted, length, 3, 42)
    for sample in samples:
        tokens = count(sample.text)
        assert sample.meta["tokens"] == tokens
        assert 0.98 * length <= tokens + TASKS[task].max_new_tokens <= length
    assert len(lengths) <= 6 * len(samples)


@generated
def test_long_samples(task: str) -> None:
    (sample,) = make_samples(task, quarters, 16384, 1, 7)
    assert 0.98 * 16384 <= quarters(sample.text) + TASKS[task].max_new_tokens <= 16384


@settings(deadline=None, max_examples=40)
@given(
    st.sampled_from([task for task in GENERATED if task != "cwe"]),
    st.integers(1200, 5000),
    st.floats(0.1, 0.6),
    st.integers(0, 100),
    st.integers(0, 2**31),
)
def test_any_length_and_any_tokenizer(task: str, length: int, rate: float, constant: int, seed: int) -> None:
    (sample,) = make_samples(task, lambda text: constant + round(rate * len(text)), length, 1, seed)
    assert 0.98 * length <= sample.meta["tokens"] + TASKS[task].max_new_tokens <= length


@generated
def test_the_least_length_is_named_and_is_enough(task: str) -> None:
    with pytest.raises(BenchmarkError, match=f"{task} doesn't fit into 100 tokens") as error:
        make_samples(task, words, 100, 1, 0)
    found = re.search(r"(\d+) or more", str(error.value))
    assert found is not None
    least = int(found[1])
    assert make_samples(task, words, least, 1, 0)[0].meta["tokens"] + TASKS[task].max_new_tokens <= least
    with pytest.raises(BenchmarkError, match="doesn't fit"):
        make_samples(task, words, least - 1, 1, 0)


@generated
def test_a_sample_depends_on_its_seed_and_index_alone(task: str) -> None:
    state = random.getstate()
    five = make_samples(task, words, 1024, 5, 42)
    random.seed(3)
    assert make_samples(task, words, 1024, 2, 42) == five[:2]
    other = make_samples(task, words, 1024, 5, 43)
    assert len({sample.prompt for sample in [*five, *other]}) == 10
    random.setstate(state)
    make_samples(task, words, 1024, 1, 42)
    assert random.getstate() == state


@generated
def test_the_tokenizer_decides_the_filler_alone(task: str) -> None:
    one, other = (make_samples(task, count, 1024, 3, 1) for count in (words, quarters))
    assert [(s.prefix, s.answers) for s in one] == [(s.prefix, s.answers) for s in other]
    assert [s.meta["filler"] for s in one] != [s.meta["filler"] for s in other]


def test_a_tokenizer_too_coarse_for_two_percent_gets_the_largest_amount_that_fits() -> None:
    (sample,) = make_samples("niah_single_1", lambda text: 100 * math.ceil(len(text) / 400), 1090, 1, 0)
    assert sample.meta["tokens"] == 900


@pytest.mark.parametrize(
    ("task", "length", "n", "message"),
    [
        ("niah_singel_1", 4096, 1, "Did you mean 'niah_single_1'"),
        ("vt", 0, 1, "ruler.length: 0 given; allowed: 1 or more"),
        ("vt", 4096, 0, "ruler.n: 0 given; allowed: 1 or more"),
        ("qa_1", 4096, 1, "qa_1 needs questions.*squad"),
        ("qa_2", 4096, 1, "qa_2 needs questions.*hotpotqa"),
    ],
)
def test_what_is_refused(task: str, length: int, n: int, message: str) -> None:
    with pytest.raises(BenchmarkError, match=message):
        make_samples(task, words, length, n, 0)


def test_tokens_to_generate_and_metrics() -> None:
    known = {"niah": (128, "all"), "vt": (30, "all"), "cwe": (120, "all"), "fwe": (50, "all"), "qa": (32, "any")}
    assert len(TASKS) == 13
    assert all((task.max_new_tokens, task.metric) == known[task.family] for task in TASKS.values())
