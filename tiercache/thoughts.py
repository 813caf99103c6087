"""Segments of a chain of thought and how they shrink: ThinKV's retention ladder (2510.01290). No torch here.

A segment is a stretch of positions with a kind of thought. When a transition ends, every earlier segment goes one step
down the ladder; while more is live than the budget allows, the oldest segment of the least important kind does. What
shrinks is decided here, which tokens of a segment stay by the scorer.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

KINDS = TRANSITION, EXECUTION, REASONING = range(3)  # in order of importance


@dataclass
class Segment:
    """Positions [start, stop), of which `size` tokens live."""

    start: int
    stop: int
    kind: int
    size: int


@dataclass
class Thoughts:
    """One sequence's closed segments.

    What a move is about, while it is made: `ended`, the stretch that has just been closed, or `shrinking`, the segment
    of which only `left` tokens stay.
    """

    segments: list[Segment] = field(default_factory=list)
    ended: Segment | None = None
    shrinking: Segment | None = None
    left: int = 0

    def close(self, start: int, stop: int, kind: int, length: int) -> Iterator[Segment]:
        """Positions [start, stop) are thoughts of this length that have ended; yields the whole stretch."""
        for first in range(start, stop, length):
            last = min(first + length, stop)
            self.segments.append(Segment(first, last, kind, last - first))
        if stop > start:
            self.ended = Segment(start, stop, kind, stop - start)
            yield self.ended
            self.ended = None

    def anneal(self, ladder: Sequence[int], first: int) -> Iterator[tuple[Segment, int]]:
        """A transition has ended: every earlier segment from position `first` on, and how many of its tokens leave."""
        for segment in self.segments[:-1]:
            if segment.start >= first:
                yield from self._shrink(segment, ladder)

    def squeeze(self, ladder: Sequence[int], first: int) -> Iterator[tuple[Segment, int]]:
        """One step for the oldest segment of the least important kind that can still shrink; nothing if none can."""
        able = [s for s in self.segments if s.start >= first and _below(s.size, ladder) is not None]
        if able:
            yield from self._shrink(min(able, key=lambda s: (s.kind, s.start)), ladder)

    def _shrink(self, segment: Segment, ladder: Sequence[int]) -> Iterator[tuple[Segment, int]]:
        left = _below(segment.size, ladder)
        if left is not None:
            self.shrinking, self.left = segment, left
            yield segment, segment.size - left
            segment.size = left
            self.shrinking = None


def _below(size: int, ladder: Sequence[int]) -> int | None:
    """The next step down, None at the bottom."""
    return max((step for step in ladder if step < size), default=None)
