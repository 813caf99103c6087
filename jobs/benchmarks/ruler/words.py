"""Counting words: the common ones of a numbered list, and the frequent ones of a coded text."""

import itertools
from dataclasses import dataclass
from random import Random
from string import ascii_lowercase

from jobs.benchmarks.ruler.lexicon import distinct_words
from jobs.benchmarks.ruler.sample import Draft, Prompt

COMMON = 10
_CWE_TASK = f"Some words of the numbered list below occur more often than all others. Find these {COMMON} words."
_CWE_PREFIX = f"The {COMMON} words that occur most often in this list are:"
_TOKENS_PER_ENTRY = 5

DOTS = "..."
ALPHA = 2.0
_ZETA = 1.6449340668482264  # of ALPHA
_FWE_LEAST = 53  # so that rank 4 occurs twice, and more often than rank 5
_FWE_TASK = (
    "The text below is in a code of made-up words. Its dots carry no meaning; leave them out of account. Find the "
    "three words that occur most often."
)
_FWE_PREFIX = "Dots left out of account, the three words that occur most often in the coded text are:"
_TOKENS_PER_CODED_WORD = 2


@dataclass(frozen=True)
class _Scale:
    """How often words occur in the list and in the example before it, and how many words the example has."""

    common: int
    other: int
    example_common: int
    example_other: int
    example_words: int


_SHORT, _LONG = _Scale(6, 1, 3, 1, 20), _Scale(30, 3, 10, 3, 40)


def draft_common_words(key: str, length: int) -> Draft:
    """Ten words occur more often than all others, in a list behind a solved one. Filler: how many others there are.

    No common word is part of another word in the list or the example, so that naming one isn't naming two.
    """
    scale = _SHORT if length < 4096 else _LONG
    source = distinct_words(Random(f"{key}/words"))
    common: list[str] = []
    while len(common) < COMMON:
        word = next(source)
        if len(word) > 3 and not any(word in known or known in word for known in common):
            common.append(word)
    others = (word for word in source if not any(known in word for known in common))
    example = list(itertools.islice(others, scale.example_words))
    known: list[str] = []

    shown = example[:COMMON] * scale.example_common + example[COMMON:] * scale.example_other
    opening = f"{_cwe_section(shown, f'{key}/example')}\n{_CWE_PREFIX} {_numbered(example[:COMMON])}"

    def build(amount: int) -> Prompt:
        known.extend(itertools.islice(others, max(0, amount - len(known))))
        entries = common * scale.common + known[:amount] * scale.other
        section = _cwe_section(entries, f"{key}/order/{amount}")
        return f"{opening}\n\n{section}", {"entries": len(entries)}

    return Draft(_CWE_PREFIX, tuple(common), build, float(_TOKENS_PER_ENTRY * scale.other), least=COMMON)


def _cwe_section(entries: list[str], key: str) -> str:
    Random(key).shuffle(entries)
    return f"{_CWE_TASK}\n\n{_numbered(entries)}\n\nWhich {COMMON} words occur most often in this list?"


def _numbered(entries: list[str]) -> str:
    return " ".join(f"{index}. {word}" for index, word in enumerate(entries, start=1))


def draft_frequent_words(key: str, length: int) -> Draft:
    """Frequencies of made-up words fall with the square of their rank; ranks 2 to 4 are asked for. Filler: words.

    Rank 1 is dots. The vocabulary grows with the length, so that rare words are rare in long texts too.
    """
    rng = Random(f"{key}/words")
    vocabulary = [DOTS]
    seen: set[str] = set()
    while len(vocabulary) < max(5, (length - 50) // 50):
        word = "".join(rng.choices(ascii_lowercase, k=6))
        if word not in seen:
            seen.add(word)
            vocabulary.append(word)

    def build(amount: int) -> Prompt:
        copies = [int(amount * rank**-ALPHA / _ZETA) for rank in range(1, len(vocabulary) + 1)]
        entries = [word for word, times in zip(vocabulary, copies, strict=True) for _ in range(times)]
        Random(f"{key}/order/{amount}").shuffle(entries)
        question = "Which three words, dots left out, occur most often in the coded text?"
        return f"{_FWE_TASK}\n\n{' '.join(entries)}\n\n{question}", {"entries": len(entries), "copies": copies[:5]}

    return Draft(_FWE_PREFIX, tuple(vocabulary[1:4]), build, float(_TOKENS_PER_CODED_WORD), least=_FWE_LEAST)
