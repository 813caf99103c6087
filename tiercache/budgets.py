"""One budget, unevenly divided over the layers. No torch here."""

from collections.abc import Sequence


def pyramid(layers: int, beta: float) -> list[float]:
    """Weights of the layers, mean 1, falling linearly from 2 - 1/beta in the first to 1/beta (2406.02069)."""
    first, last = 2 - 1 / beta, 1 / beta
    if layers == 1:
        return [1.0]
    return [first + (last - first) * layer / (layers - 1) for layer in range(layers)]


def divide(total: int, weights: Sequence[float], most: Sequence[int]) -> list[int]:
    """`total` divided by weight into whole numbers, none above its `most`; what one can't take goes to the others.

    The parts add up to `total`, or to all there is. Rounding is by the largest remainder, the first among equals.
    """
    parts = [0] * len(weights)
    open_ = set(range(len(weights)))
    rest = min(total, sum(most))
    while open_:
        scale = rest / sum(weights[i] for i in open_)
        full = {i for i in open_ if weights[i] * scale >= most[i]}
        if not full:
            break
        for i in full:  # takes all it can; the others divide what is left
            parts[i] = most[i]
        rest -= sum(most[i] for i in full)
        open_ -= full
    shares = {i: weights[i] * scale for i in sorted(open_)}
    parts = [int(shares[i] + 1e-9) if i in open_ else part for i, part in enumerate(parts)]
    spare = rest - sum(parts[i] for i in open_)
    for i in sorted(shares, key=lambda i: parts[i] - shares[i])[:spare]:
        parts[i] += 1
    return parts
