"""Haystacks: repeated noise, prose (the user's, or made up from templates), and how needles are put into them."""

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from random import Random

from jobs.benchmarks.ruler.lexicon import words

TOKENS_PER_CHAR = 0.25
NOISE = "The lamp is lit. The road is long. A bird sings. Someone walks past. Nothing else happens."

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])")
_LONGEST = 60  # words that stay together in prose without full stops
_SLOT = re.compile("ADJECTIVE|NOUN|VERB")
_TEMPLATES = (
    "Nobody had expected the ADJECTIVE NOUN to VERB before the NOUN did.",
    "In the end it was the NOUN, and not the NOUN, that made the evening ADJECTIVE.",
    "People who VERB early in life tend to remember their first NOUN.",
    "My neighbour says that every NOUN is ADJECTIVE once you learn to VERB.",
    "The difference between the NOUN and the NOUN is smaller than it looks.",
    "We used to VERB there on Sundays, next to the ADJECTIVE NOUN.",
    "If the NOUN seems ADJECTIVE, wait until the others begin to VERB.",
    "What matters about the NOUN is how ADJECTIVE it was when we found it.",
    "They could VERB for hours, as long as someone watched the NOUN.",
    "The NOUN stood behind the NOUN, ADJECTIVE and out of reach.",
    "It takes patience to VERB with the NOUN, and more to do so without one.",
    "Some call this ADJECTIVE; the older ones only speak of the NOUN.",
    "Most of what I know about the NOUN I learned while trying to VERB.",
    "Two years later the ADJECTIVE NOUN was gone, and with it the NOUN.",
    "Why would anyone VERB when the NOUN is so close?",
    "The trouble with the NOUN began when it turned ADJECTIVE.",
    "On the table lay the NOUN, the NOUN and, of all things, the ADJECTIVE NOUN.",
    "You may VERB now or VERB later, but the NOUN won't wait.",
    "Hardly anything in the town was as ADJECTIVE as its NOUN.",
    "So the NOUN went to the museum, where visitors still VERB in front of it.",
    "Those letters mention the NOUN only once, and call it ADJECTIVE.",
    "To VERB is easy; to VERB beside the ADJECTIVE NOUN is an art.",
    "The teacher drew the NOUN on the board and asked us to VERB.",
    "Between the NOUN and the river there was room for one more NOUN.",
)


class Filler:
    """Pieces of text in an order that is drawn once: a smaller amount is the beginning of a larger one."""

    def __init__(self, pieces: Iterable[str]) -> None:
        self._source = iter(pieces)
        self._pieces: list[str] = []

    def take(self, chars: int) -> list[str]:
        """Pieces of `chars` characters together, or fewer where they run out; the last is cut at a space or hyphen."""
        taken: list[str] = []
        for index in itertools.count():
            if chars <= 0:
                break
            if index == len(self._pieces):
                if (fresh := next(self._source, None)) is None:
                    break
                self._pieces.append(fresh)
            piece = self._pieces[index]
            chars -= len(piece) + 1
            kept = piece if chars >= -1 else _cut(piece, len(piece) + 1 + chars)
            if kept:
                taken.append(kept)
        return taken


def _cut(piece: str, chars: int) -> str:
    """The beginning of a piece, at most `chars` long, up to a space, line end or hyphen."""
    return piece[: max(0, *(piece.rfind(mark, 0, chars + 1) for mark in " \n-"))]


def noise() -> Iterator[str]:
    return itertools.repeat(NOISE)


def made_up_prose(rng: Random) -> Iterator[str]:
    """Sentences without end: grammatical, varied, and about nothing."""
    lists = {"ADJECTIVE": words("ADJECTIVES"), "NOUN": words("NOUNS"), "VERB": words("VERBS")}
    while True:
        yield _SLOT.sub(lambda slot: rng.choice(lists[slot[0]]), rng.choice(_TEMPLATES))


def sentences(prose: str) -> list[str]:
    """A text's sentences with white space collapsed; what has no full stop is split every 60 words."""
    found = []
    for sentence in _SENTENCE_END.split(prose):
        parts = sentence.split()
        found += [" ".join(parts[start : start + _LONGEST]) for start in range(0, len(parts), _LONGEST)]
    return found


def from_anywhere(pieces: Sequence[str], rng: Random) -> Iterator[str]:
    """The pieces from a random one on, round and round."""
    start = rng.randrange(len(pieces))
    return itertools.islice(itertools.cycle(pieces), start, None)


def place(pieces: Sequence[str], extras: Sequence[str], depths: Sequence[float]) -> tuple[list[str], list[float]]:
    """Puts each extra behind its share of the pieces; extras at one place keep their order.

    Returns:
        all pieces in order, and for each extra the exact share of `pieces` that is before it.
    """
    gaps = [round(depth * len(pieces)) for depth in depths]
    lines = list(pieces)
    last_first = reversed(list(zip(gaps, extras, strict=True)))
    for gap, extra in sorted(last_first, key=lambda pair: pair[0], reverse=True):
        lines.insert(gap, extra)
    return lines, [round(gap / max(1, len(pieces)), 4) for gap in gaps]
