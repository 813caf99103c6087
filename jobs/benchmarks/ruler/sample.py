"""A finished sample, and a draft of one whose amount of filler is still open."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

CountTokens = Callable[[str], int]  # tokens of a text in the model's own tokenizer

Prompt = tuple[str, dict[str, Any]]  # the prompt, and where in it things are


@dataclass(frozen=True)
class RulerSample:
    """One sample.

    prompt   the user's turn.
    prefix   opens the answer: it comes after the prompt, or after the chat template's opening of the model's turn.
    answers  reference strings; the task's metric says whether all or any of them are wanted.
    meta     tokens (of `text`), filler (amount of it, in the family's unit), and depths or positions.
    """

    prompt: str
    prefix: str
    answers: tuple[str, ...]
    meta: Mapping[str, Any]

    @property
    def text(self) -> str:
        """Prompt and prefix as one text without a chat template; its tokens are what the length rule counts."""
        return joined(self.prompt, self.prefix)


def joined(prompt: str, prefix: str) -> str:
    return f"{prompt}\n{prefix}"


@dataclass(frozen=True)
class Draft:
    """A sample but for its amount of filler.

    build   the prompt with a given amount; the same amount always gives the same prompt.
    rate    tokens of one unit of filler, roughly: a first guess that decides only how soon the amount is found.
    least   smallest amount that makes a task of it.
    most    largest amount that there is material for; None without limit.
    """

    prefix: str
    answers: tuple[str, ...]
    build: Callable[[int], Prompt]
    rate: float
    least: int = 0
    most: int | None = None
