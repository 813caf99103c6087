"""Register programs: the problems the embedded reasoner solves by a chain of thought.

A problem is a straight-line program over names `x0`..`x63` with values modulo 10. The prompt states
the leaves, then one entry a name, then four queries; the chain works every entry out and ends in
`#### dddd`, the four queried values. There are two difficulties in one vocabulary:

registers  An entry consumes a value that is live, drawn at random, and adds a constant to it. Each
           value is therefore read exactly once, at a moment nothing announces. A cache policy that
           ranks tokens by the attention they have received cannot know which value comes next.

               prompt  x53 x52 x53 +6 ;               x53 = x52 + 6
               chain   x53 x52 =8 x53 +6 x53 =4 .

ledger     An entry adds the previous result to any earlier value. Each result is read by the very
           next entry, which makes it a heavy hitter; a sliding window still fails, because the
           other operand comes from far back.

               prompt  x53 x40 x53 x52 ;              x53 = x40 + x52
               chain   x53 x40 =3 x53 x52 =8 x53 =1 .

Three rules make this learnable by a model of half a million parameters. Every retrieval asks the
same question, "what followed this name?": hence the repeated `x53`, and hence a value always
stands directly after its own name. The names of a program are consecutive (from a random start,
modulo 64), so that going on to the next entry is a table and not a search. Constants (`+6`) have
tokens of their own, distinct from values (`=6`) and from the digits of the answer.

Seeds split training from testing. Seeds in [0, 2**32) belong to evaluation; the training script
draws only from seeds at or above `TRAIN_SEED_BASE` = 2**32. A problem is a function of its
difficulty, seed, index and ranges alone, on every platform.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

NAMES = 64
MODULUS = 10
QUERIES = ("?a", "?b", "?c", "?d")
DIFFICULTIES = ("registers", "ledger")
TRAIN_SEED_BASE = 2**32

DEFAULT_ENTRIES = (24, 47)
"""Chains of 210-394 tokens for registers and 234-441 for the ledger."""

DEFAULT_LEAVES = (6, 14)


@dataclass(frozen=True)
class Problem:
    """One problem with its reference solution.

    `answer` is a string of four digits whose leading zeros count: compare it as text.
    `entries` is the number of entries of the program.
    """

    id: str
    prompt: str
    chain: str
    answer: str
    entries: int


def make_problem(
    difficulty: str,
    seed: int,
    index: int,
    entries: tuple[int, int] = DEFAULT_ENTRIES,
    leaves: tuple[int, int] = DEFAULT_LEAVES,
) -> Problem:
    """Problem `index` of the data set `seed`; counts are drawn uniformly from inclusive ranges.

    Raises ValueError for a difficulty, seed, index or range outside the grammar.
    """
    _check(difficulty, seed, index, entries, leaves)
    # A string seeds through SHA-512, which does not depend on the platform or on PYTHONHASHSEED.
    rng = random.Random(f"{difficulty}:{seed}:{index}")
    return draw_problem(rng, difficulty, rng.randint(*entries), rng.randint(*leaves), f"{seed}-{index}")


def draw_problem(
    rng: random.Random,
    difficulty: str,
    entries: int,
    leaves: int,
    label: str = "",
    constants: Sequence[int] = range(MODULUS),
) -> Problem:
    """Draw one problem of a given size; a register's constant comes from the pool `constants`."""
    start = rng.randrange(NAMES)
    names = [f"x{(start + i) % NAMES}" for i in range(leaves + entries)]
    values = [rng.randrange(MODULUS) for _ in range(leaves)]
    prompt = [f"{names[i]} ={values[i]} ;" for i in range(leaves)]
    chain: list[str] = []
    live = list(range(leaves))  # what a query or a register may still read

    for i in range(leaves, leaves + entries):
        name = names[i]
        if difficulty == "registers":
            j = live.pop(rng.randrange(len(live)))
            c = rng.choice(constants)
            values.append((values[j] + c) % MODULUS)
            second, shown = f"+{c}", f"+{c}"
        else:
            j = rng.randrange(i - 1)
            values.append((values[j] + values[i - 1]) % MODULUS)
            second, shown = names[i - 1], f"{names[i - 1]} ={values[i - 1]}"
        live.append(i)
        prompt.append(f"{name} {names[j]} {name} {second} ;")
        chain.append(f"{name} {names[j]} ={values[j]} {name} {shown} {name} ={values[i]} .")

    asked = rng.sample(live, len(QUERIES))
    prompt += [f"{q} {names[i]}" for q, i in zip(QUERIES, asked, strict=True)]
    chain += [f"{q} {names[i]} ={values[i]}" for q, i in zip(QUERIES, asked, strict=True)]
    answer = "".join(str(values[i]) for i in asked)
    return Problem(
        id=f"{difficulty}-{label}",
        prompt=" ".join(prompt) + " ;",
        chain=" ".join(chain) + f" . #### {answer}",
        answer=answer,
        entries=entries,
    )


def _check(difficulty: str, seed: int, index: int, entries: tuple[int, int], leaves: tuple[int, int]) -> None:
    if difficulty not in DIFFICULTIES:
        raise ValueError(f"difficulty: {difficulty!r} is none of {', '.join(DIFFICULTIES)}")
    if seed < 0 or index < 0:
        raise ValueError(f"seed and index must not be negative, got seed={seed}, index={index}")
    if not 1 <= entries[0] <= entries[1]:
        raise ValueError(f"entries: {entries} is not a range (low, high) with 1 <= low <= high")
    if not len(QUERIES) <= leaves[0] <= leaves[1]:
        raise ValueError(f"leaves: {leaves} is not a range with {len(QUERIES)} <= low <= high")
    if entries[1] + leaves[1] > NAMES:
        raise ValueError(
            f"entries and leaves: up to {entries[1]} + {leaves[1]} names are needed, "
            f"there are {NAMES}; lower one of the upper bounds"
        )
