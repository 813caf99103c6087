"""Answers are in the prompt where they should be, nowhere else, and a right one gets full marks."""

import itertools
import math
import re
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.benchmarks.ruler import TASKS, RulerSample, Sources, make_samples
from jobs.benchmarks.ruler.texts import NOISE, Filler, place
from jobs.benchmarks.ruler.words import DOTS, draft_common_words, draft_frequent_words
from jobs.grading.matching import grade_match
from tiercache.errors import BenchmarkError

GENERATED = [name for name, task in TASKS.items() if task.family != "qa"]
NEEDLES = [name for name, task in TASKS.items() if task.needles is not None]
ANSWERS = {"niah_multivalue": 4, "niah_multiquery": 4, "vt": 5, "cwe": 10, "fwe": 3}  # otherwise one
_NEEDLE = re.compile(r"(?:One|The) registered (?:number|identifier) of (\S+) is (\S+)\.")


def quarters(text: str) -> int:
    return math.ceil(len(text) / 4)


def samples(task: str, length: int = 4096, n: int = 4, sources: Sources | None = None) -> list[RulerSample]:
    return make_samples(task, quarters, length, n, 11, sources=sources)


@pytest.mark.parametrize("task", GENERATED)
def test_the_right_answer_gets_full_marks_and_one_short_of_it_its_share(task: str) -> None:
    for sample in samples(task):
        count = len(sample.answers)
        assert count == ANSWERS.get(task, 1)
        assert not any(answer.lower() in sample.prefix.lower() for answer in sample.answers)
        full = grade_match(f"{sample.prefix} {', '.join(sample.answers)}", sample.answers, "stop", every=True)
        assert (full.outcome, full.score) == ("correct", 1.0)
        for left_out in range(count):
            rest = ", ".join(sample.answers[:left_out] + sample.answers[left_out + 1 :])
            part = grade_match(f"{sample.prefix} {rest}", sample.answers, "stop", every=True)
            assert part.score == pytest.approx((count - 1) / count)


@pytest.mark.parametrize("task", NEEDLES)
def test_each_needle_is_there_once_at_its_depth(task: str) -> None:
    needles = TASKS[task].needles
    assert needles is not None
    for sample in samples(task):
        body = sample.prompt.split("\n\n", 1)[1].rsplit("\n\n", 1)[0]
        hidden, depths = sample.meta["needles"], sample.meta["depths"]
        assert len(hidden) == len(depths) == max(needles.keys, needles.queries) * needles.values
        for needle, depth in zip(hidden, depths, strict=True):
            assert sample.prompt.count(needle) == 1
            assert body.index(needle) / len(body) == pytest.approx(depth, abs=0.07)
        assert all(sample.prompt.count(answer) == 1 for answer in sample.answers)
        pairs = _NEEDLE.findall(body)
        assert [value for key, value in pairs if key in sample.meta["asked"]] == sorted(sample.answers, key=body.index)
        assert len({value for _, value in pairs}) == len(pairs)
        assert len({key for key, _ in pairs}) == len(pairs) / needles.values


@pytest.mark.parametrize("task", ["niah_multikey_2", "niah_multikey_3"])
def test_every_line_among_needles_is_one(task: str) -> None:
    for sample in samples(task):
        lines = sample.prompt.split("\n\n")[1].split("\n")
        assert len(lines) > 60
        assert sum(_NEEDLE.fullmatch(line) is None for line in lines) <= 1  # the one that is cut


def test_values_have_the_form_of_their_kind() -> None:
    for task in NEEDLES:
        needles = TASKS[task].needles
        form = r"[1-9]\d{6}" if needles and needles.value == "numbers" else r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
        assert all(re.fullmatch(form, answer) for sample in samples(task, 1024) for answer in sample.answers)


def test_a_chain_is_assigned_in_order_behind_a_solved_one() -> None:
    for sample in samples("vt"):
        example, _, rest = sample.prompt.partition("is held by ")
        solved, _, question = rest.partition("\n")
        assert len(re.findall(r"[A-Z]{3}", solved)) == 5
        assert all(f"Let {name} = " in example for name in re.findall(r"[A-Z]{3}", solved))
        found = re.findall(r"Let ([A-Z]{5}) = (\w+)\.", question)
        assert [name for name, _ in found] == list(sample.answers)
        value = found[0][1]
        assert [source for _, source in found] == [value, *sample.answers[:-1]]
        assert f"hold the value {value} " in question
        assert value not in example
        assert sample.prefix.endswith(f"the value {value} is held by")
        assert not any(answer in example for answer in sample.answers)


@pytest.mark.parametrize(("length", "common", "other"), [(1024, 6, 1), (4095, 6, 1), (4096, 30, 3), (65536, 30, 3)])
def test_common_words_are_the_ten_most_frequent(length: int, common: int, other: int) -> None:
    for sample in samples("cwe", length, 2):
        example, listed = re.findall(r"\n\n(1\. [^\n]*)\n\nWhich", sample.prompt)
        counts = Counter(re.findall(r"\d+\. (\w+)", listed))
        assert {word for word, _ in counts.most_common(10)} == set(sample.answers)
        assert {counts[answer] for answer in sample.answers} == {common}
        assert set(counts.values()) == {common, other}
        shown = Counter(re.findall(r"\d+\. (\w+)", example))
        assert not shown.keys() & counts.keys()
        solved = re.findall(r"\d+\. (\w+)", sample.prompt.split("in this list are: ")[1].split("\n")[0])
        assert {word for word, _ in shown.most_common(10)} == set(solved)
        others = (shown.keys() | counts.keys()) - set(sample.answers)
        assert not any(answer in word for answer in sample.answers for word in others)


def test_no_common_word_is_part_of_another() -> None:
    for key in range(400):
        answers = draft_common_words(str(key), 1024).answers
        assert not any(one in other for one, other in itertools.permutations(answers, 2))


def test_words_are_made_up_once_the_lists_are_used_up() -> None:
    (sample,) = make_samples("cwe", lambda text: len(text) // 20, 30_000, 1, 0)
    assert sample.meta["filler"] > 10_000


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 20_000) | st.integers(0, 80), st.integers(300, 40_000))
def test_the_three_frequent_words_are_strictly_so(more: int, length: int) -> None:
    draft = draft_frequent_words("0", length)
    counts = Counter(draft.build(draft.least + more)[0].split("\n\n")[1].split())
    (dots, most), *ranks = counts.most_common()
    assert (dots, most) == (DOTS, counts[DOTS])
    assert [word for word, _ in ranks[:3]] == list(draft.answers)
    assert most > ranks[0][1] > ranks[1][1] > ranks[2][1] > (ranks[3][1] if len(ranks) > 3 else 0)


def test_made_up_prose_does_not_repeat_itself() -> None:
    (sample,) = samples("niah_single_2", 4096, 1)
    sentences = re.split(r"(?<=[.?]) ", sample.prompt.split("\n\n")[1])
    assert len(sentences) > 100
    assert len(set(sentences)) == len(sentences)


@pytest.mark.parametrize(
    "prose",
    [
        "Short {text} with {0} braces.  It is %s\n\nrepeated. ",
        "no full stop " * 900,
        "日本語の文です。もう一つの文。" * 20,
    ],
)
def test_the_haystack_is_the_users_own_text(prose: str) -> None:
    for sample in samples("niah_multikey_1", 2048, 2, Sources(prose=prose)):
        body = sample.prompt.split("\n\n", 1)[1].rsplit("\n\n", 1)[0]
        for needle in sample.meta["needles"]:
            assert body.count(needle) == 1
            body = body.replace(needle, "")
        assert set(re.split(r"[\s。]+", body)) <= set(re.split(r"[\s。]+", prose)) | {""}
        assert 0.98 * 2048 <= sample.meta["tokens"] + 128 <= 2048


def test_no_value_occurs_in_the_users_text() -> None:
    plain = samples("niah_single_2", 1024, 1)[0].answers[0]
    (sample,) = samples("niah_single_2", 1024, 1, Sources(prose=f"It says {plain}. And more."))
    assert sample.answers[0] != plain
    assert sample.prompt.count(sample.answers[0]) == 1


def test_an_empty_text_is_refused() -> None:
    with pytest.raises(BenchmarkError, match="text is empty"):
        samples("niah_single_2", sources=Sources(prose=" \n"))


@given(st.integers(0, 400), st.integers(0, 400))
def test_less_filler_is_the_beginning_of_more(one: int, other: int) -> None:
    small, large = (" ".join(Filler([NOISE] * 3).take(chars)) for chars in sorted((one, other)))
    assert large.startswith(small)
    assert len(small) <= min(one, other)


@given(st.lists(st.floats(0, 1), max_size=6), st.integers(0, 9))
def test_placing_keeps_the_pieces_and_the_order_of_extras_at_one_place(depths: list[float], count: int) -> None:
    pieces, extras = [f"p{i}" for i in range(count)], [f"e{i}" for i in range(len(depths))]
    lines, shares = place(pieces, extras, sorted(depths))
    assert [line for line in lines if line[0] == "p"] == pieces
    assert [line for line in lines if line[0] == "e"] == extras
    for extra, share in zip(extras, shares, strict=True):
        before = sum(line[0] == "p" for line in lines[: lines.index(extra)])
        assert before / max(1, count) == pytest.approx(share, abs=1e-4)
