"""Needles in a haystack: sentences that give a key its value, hidden among noise, prose or other needles."""

import uuid
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

from jobs.benchmarks.ruler import texts
from jobs.benchmarks.ruler.lexicon import words
from jobs.benchmarks.ruler.sample import Draft, Prompt
from jobs.benchmarks.ruler.tasks import Needles

_KIND = {"numbers": "number", "uuids": "identifier"}
_DEPTHS = 40  # evenly spaced places for needles in prose


def draft_needles(needles: Needles, key: str, prose: str, prose_sentences: Sequence[str]) -> Draft:
    """The draft of one needle task; filler is counted in characters.

    Args:
        key: seed of everything random.
        prose: the user's haystack, in which no key or value may occur; empty for prose that is made up.
        prose_sentences: its sentences.
    """
    rng = Random(f"{key}/needles")
    fresh = _Fresh(rng, prose)
    table = {
        fresh(needles.key): [fresh(needles.value) for _ in range(needles.values)]
        for _ in range(max(needles.keys, needles.queries))
    }
    lines = [_sentence(name, value, needles) for name, values in table.items() for value in values]
    asked = rng.sample(sorted(table), needles.queries)
    answers = tuple(value for name in asked for value in table[name])
    if needles.haystack == "prose":
        depths = [place / (_DEPTHS - 1) for place in rng.sample(range(_DEPTHS), len(lines))]
    else:
        depths = [rng.random() for _ in lines]

    hay = Random(f"{key}/haystack")
    if needles.haystack == "noise":
        filler = texts.Filler(texts.noise())
    elif needles.haystack == "needles":
        filler = texts.Filler(_others(_Fresh(hay, prose, fresh.seen), needles))
    elif prose_sentences:
        filler = texts.Filler(texts.from_anywhere(prose_sentences, hay))
    else:
        filler = texts.Filler(texts.made_up_prose(hay))
    glue = " " if needles.haystack == "prose" else "\n"

    kind = _KIND[needles.value]
    names = listed(asked)
    if len(answers) == 1:
        task = f"Registered {kind}s are hidden in the text below. Read it with care: you will be asked for one of them."
        question = f"Which registered {kind} does the text give for {names}?"
        prefix = f"The registered {kind} that the text gives for {names} is"
    else:
        task = (
            f"Registered {kind}s are hidden in the text below. Read it with care: you will be asked for some of them."
        )
        question = f"Which registered {kind}s does the text give for {names}? Name all {len(answers)}."
        prefix = f"The registered {kind}s that the text gives for {names} are"

    def build(amount: int) -> Prompt:
        haystack, placed = texts.place(filler.take(amount), lines, depths)
        meta: dict[str, Any] = {"needles": lines, "depths": placed, "asked": asked}
        return f"{task}\n\n{glue.join(haystack)}\n\n{question}", meta

    return Draft(prefix, answers, build, texts.TOKENS_PER_CHAR)


def listed(names: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _sentence(name: str, value: str, needles: Needles) -> str:
    which = "One" if needles.values > 1 else "The"
    return f"{which} registered {_KIND[needles.value]} of {name} is {value}."


def _others(fresh: "_Fresh", needles: Needles) -> Iterator[str]:
    while True:
        yield _sentence(fresh(needles.key), fresh(needles.value), needles)


class _Fresh:
    """Keys and values that haven't been given out before and don't occur in the prose."""

    def __init__(self, rng: Random, prose: str, seen: set[str] | None = None) -> None:
        self._rng, self._prose, self.seen = rng, prose, set(seen or ())

    def __call__(self, kind: str) -> str:
        while (drawn := _DRAW[kind](self._rng)) in self.seen or drawn in self._prose:
            pass
        self.seen.add(drawn)
        return drawn


def _pair(rng: Random) -> str:
    return f"{rng.choice(words('ADJECTIVES'))}-{rng.choice(words('NOUNS'))}"


def _number(rng: Random) -> str:
    return str(rng.randrange(10**6, 10**7))


def _uuid(rng: Random) -> str:
    return str(uuid.UUID(int=rng.getrandbits(128), version=4))


_DRAW: dict[str, Callable[[Random], str]] = {"words": _pair, "numbers": _number, "uuids": _uuid}
