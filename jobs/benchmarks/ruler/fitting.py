"""Finds the amount of filler that brings a sample to its length in few counts of tokens."""

import math
from collections.abc import Callable

from jobs.benchmarks.ruler.sample import CountTokens, Draft, RulerSample, joined
from jobs.benchmarks.ruler.tasks import Task
from tiercache.errors import BenchmarkError

SHORTEST = 0.98  # of the wanted length
_SECANT_COUNTS = 6
_MAX_COUNTS = 14
_SPARSE = 50  # times the filler that ordinary text needs: a tokenizer that wants more has no words for it


def fill(draft: Draft, task: Task, count: CountTokens, length: int) -> RulerSample:
    """The draft with as much filler as brings prompt, prefix and the tokens to generate to 98-100% of `length`.

    Filler is all but linear in tokens, so three or four counts do, of which the first is of the sample without filler
    and the second of about a quarter of it; a count is of the whole text each time, so `count` may add a chat
    template's constant. A tokenizer that makes more than 2% of `length` out of one unit of filler gets the largest
    amount that fits.

    Raises:
        BenchmarkError: the task needs more than `length`, or there is too little material for it.
    """
    budget = length - task.max_new_tokens
    floor = math.ceil(SHORTEST * length) - task.max_new_tokens

    def size(amount: int) -> int:
        return count(joined(draft.build(amount)[0], draft.prefix))

    bare = size(draft.least)
    if bare > budget:
        raise BenchmarkError(
            f"ruler.length: {task.name} doesn't fit into {length} tokens; allowed for this sample: "
            f"{bare + task.max_new_tokens} or more (prompt {bare}, answer {task.max_new_tokens})."
        )
    ample = draft.least + math.ceil(_SPARSE * budget / draft.rate)
    most = ample if draft.most is None else min(ample, draft.most)
    amount, tokens = _search(size, (draft.least, bare), most, floor, budget, draft.rate)
    if tokens < floor and amount == draft.most:
        raise BenchmarkError(
            f"ruler.length: {length} tokens are more than the documents of {task.name} fill; allowed with these data: "
            f"up to {tokens + task.max_new_tokens}. Give more documents or a smaller length."
        )
    if tokens < floor and amount == ample:
        raise BenchmarkError(
            f"ruler: this model's tokenizer makes {tokens} tokens of {len(draft.build(amount)[0]):,} characters, "
            "so it has no words for what RULER asks. Take a model of natural language."
        )
    prompt, meta = draft.build(amount)
    return RulerSample(prompt, draft.prefix, draft.answers, {"tokens": tokens, "filler": amount, **meta})


def _search(
    size: Callable[[int], int], start: tuple[int, int], most: int, floor: int, budget: int, rate: float
) -> tuple[int, int]:
    """An amount and its size, between `floor` and `budget` where there is one, else the largest found that fits.

    The secant through the last two measurements; bisection takes over should that not get there.
    """
    aim = (floor + budget) / 2
    fits, beyond = start[0], most + 1
    known = [start]
    sizes = dict(known)
    while sizes[fits] < floor and beyond - fits > 1 and len(known) < _MAX_COUNTS:
        last, tokens = known[-1]
        if len(known) == 1:
            guess = last + (aim - tokens) / rate / 4
        elif len(known) < _SECANT_COUNTS or beyond > most:
            before, fewer = known[-2]
            slope = (tokens - fewer) / (last - before)
            guess = last + (aim - tokens) / slope if slope > 0 else most
        else:
            guess = (fits + beyond) / 2
        amount = max(fits + 1, min(beyond - 1, round(guess)))
        sizes[amount] = size(amount)
        known.append((amount, sizes[amount]))
        if sizes[amount] <= budget:
            fits = amount
        else:
            beyond = amount
    return fits, sizes[fits]
