"""Position as signal: StreamingLLM (2309.17453)."""

from torch import Tensor

from tiercache.scorers.base import Scorer, View


class Recency(Scorer):
    """The newest are the most important."""

    shared = True

    def score(self, view: View) -> Tensor:
        return view.pos
