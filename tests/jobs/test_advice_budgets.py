"""Budgets as options name them."""

import pytest

from jobs.advice import Question, Room, Share, read_budget
from tiercache.errors import SpecError, TierCacheError

SEVEN = "DeepSeek-R1-Distill-Qwen-7B"


@pytest.mark.parametrize(
    ("text", "model", "word"),
    [("1.5", None, "at most 1"), ("0", None, "above 0"), ("8GiB", None, "--on"), ("much", SEVEN, "size with its unit")],
)
def test_budgets_that_are_none(text: str, model: str | None, word: str) -> None:
    with pytest.raises(TierCacheError, match=word):
        read_budget(text, model, 4096, 512, 1)


def test_budgets_that_are_read() -> None:
    assert read_budget("0.5", None, 4096, 512, 1) == Share(0.5)
    found = read_budget("2GiB", SEVEN, 4096, 512, 3)
    assert isinstance(found, Room)
    assert (found.bytes, found.context, found.rows) == (2 * 2**30, 4096, 3)


def test_a_loss_is_a_share() -> None:
    for wrong in (0.0, 1.0, -0.1):
        with pytest.raises(SpecError, match="loss"):
            Question(Share(0.5), wrong)
