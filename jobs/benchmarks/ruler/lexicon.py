"""Words: the lists of `wonderwords` without rude ones, and made-up words where more are needed."""

from collections.abc import Iterator, Sequence
from functools import cache
from random import Random
from typing import TypeVar

from wonderwords import Defaults, RandomWord

_SYLLABLES = [consonant + vowel for consonant in "bdfghklmnprstvwz" for vowel in "aeiou"]

T = TypeVar("T")


@cache
def words(kind: str) -> tuple[str, ...]:
    """Plain lower-case words, sorted. `kind`: NOUNS, VERBS or ADJECTIVES."""
    rude = set(_listed("PROFANITIES"))
    return tuple(word for word in _listed(kind) if word not in rude)


@cache
def all_words() -> tuple[str, ...]:
    return tuple(sorted({word for kind in ("NOUNS", "VERBS", "ADJECTIVES") for word in words(kind)}))


def _listed(kind: str) -> list[str]:
    source = RandomWord(enhanced_prefixes=False, words=Defaults[kind])
    return [str(word) for word in source.filter(regex="[a-z]+")]


def distinct_words(rng: Random) -> Iterator[str]:
    """Words without end, none twice: all listed ones in random order, then made-up ones that can be spoken."""
    listed = all_words()
    yield from shuffled(listed, rng)
    seen = set(listed)
    syllables = 3
    while True:
        for _ in range(10_000):
            word = "".join(rng.choices(_SYLLABLES, k=syllables))
            if word not in seen:
                seen.add(word)
                yield word
        syllables += 1  # before they run out


def shuffled(items: Sequence[T], rng: Random) -> Iterator[T]:
    """The items in random order, drawn as they are needed: a few of many cost little (Fisher-Yates, sparse)."""
    moved: dict[int, int] = {}
    for last in range(len(items) - 1, -1, -1):
        index = rng.randrange(last + 1)
        yield items[moved.get(index, index)]
        moved[index] = moved.get(last, last)
