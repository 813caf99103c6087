"""ROUGE-L agrees with values worked out by hand and with the package that LongBench uses."""

import sys

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from jobs.grading.rouge import rouge_l

KNOWN = [
    # 2 × distinct common words / (distinct words + distinct words)
    ("the cat sat", "the cat sat", 1.0),
    ("the cat", "the cat sat", 0.8),
    ("sat cat the", "the cat sat", 1 / 3),
    ("a b c d", "a x c y", 0.5),
    ("a a a", "a", 1.0),
    ("a b. c d", "a b. c d", 1.0),
    ("c d. a b", "a b. c d", 1.0),
    ("c d a b", "a b c d", 0.5),
    ("Cat", "cat", 0.0),
    ("cat,", "cat", 0.0),
    ("cat.", "cat", 1.0),
    ("", "cat", 0.0),
    ("...", "cat", 0.0),
    ("cat", "", 0.0),
    ("  ", "cat", 0.0),
]


@pytest.mark.parametrize(("prediction", "reference", "score"), KNOWN)
def test_known_score(prediction: str, reference: str, score: float) -> None:
    assert rouge_l(prediction, reference) == pytest.approx(score, abs=1e-12)


LATIN = st.lists(st.sampled_from(["cat", "dog", "sat", "ran", "b", "c.", "d,", "x"]), min_size=1, max_size=12).map(
    " ".join
)


@given(LATIN, LATIN)
def test_rouge_equals_the_package(left: str, right: str) -> None:
    package = pytest.importorskip("rouge")
    expected = package.Rouge().get_scores([left], [right], avg=True)["rouge-l"]["f"]
    assert rouge_l(left, right) == pytest.approx(expected, abs=1e-7)


@given(st.text(alphabet="ab .\n", max_size=40), st.text(alphabet="ab .\n", max_size=40))
def test_rouge_equals_the_package_with_blank_sentences(left: str, right: str) -> None:
    package = pytest.importorskip("rouge")
    assume(left.strip(".") and right.strip("."))  # it raises ValueError
    expected = package.Rouge().get_scores([left], [right], avg=True)["rouge-l"]["f"]
    assert rouge_l(left, right) == pytest.approx(expected, abs=1e-7)


def test_rouge_of_texts_at_which_the_package_gives_up() -> None:
    words = [f"w{index}" for index in range(3 * sys.getrecursionlimit())]
    assert rouge_l(" ".join(words), " ".join(words)) == 1.0
    assert rouge_l(" ".join(words[::2]), " ".join(words)) == pytest.approx(2 / 3)
