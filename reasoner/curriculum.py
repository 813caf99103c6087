"""What the model is shown, and when: stages of growing programs, and gaps between their positions.

A retrieval circuit forms on short programs or not at all. Two devices carry it over to long ones.
Positions skip at random at the borders of entries, so that a program of three entries already sees
the distances of forty. And a stage is left only when its tokens are right, while a share of the
batches keeps coming from the stages behind it.
"""

import random
from dataclasses import dataclass

import torch
from torch import Tensor

from reasoner.grammar import MODULUS, TRAIN_SEED_BASE, Problem, draw_problem
from reasoner.tokenizer import BOS, EOS, vocabulary

RESULT_SLOT = {"registers": 6, "ledger": 7}  # where in a chain entry the sum stands
ENTRY_TOKENS = {"registers": 8, "ledger": 9}  # in the chain
PROMPT_ENTRY_TOKENS = 5


@dataclass(frozen=True)
class Stage:
    """Ranges are inclusive; `span` is the highest position id that the gaps may reach."""

    entries: tuple[int, int]
    leaves: tuple[int, int]
    span: int
    constants: tuple[int, ...] = tuple(range(MODULUS))


# With uniform addends every single token is useless for the sum, and the gradient of the addition
# starts at zero: it may stay at chance for good. A pool with repeats breaks that symmetry, because
# then the value alone already says something about the sum.
SKEWED = (0, 1, 1, 1, 1, 2, 2, 3, *range(MODULUS))

STAGES = (
    Stage((1, 3), (4, 5), 200, SKEWED),
    Stage((3, 8), (4, 8), 300, SKEWED),
    Stage((8, 16), (5, 12), 450),
    Stage((16, 32), (6, 14), 600),
    Stage((10, 48), (6, 14), 740),
)
REVIEW_SHARE = 0.15
LEDGER_SHARE = 0.3
PROMOTE_AT = 0.95  # moving average of the accuracy on the tokens that are not boilerplate


@dataclass(frozen=True)
class Batch:
    """Programs of one size. ids, positions: [batch, tokens]; the chain starts at `first`."""

    difficulty: str
    ids: Tensor
    positions: Tensor
    first: int
    leaves: int
    entries: int


def draw_batch(seed: int, step: int, stage: int, tokens: int) -> Batch:
    """The batch of a step, a function of its arguments alone; about `tokens` token ids in all."""
    rng = random.Random(f"train:{TRAIN_SEED_BASE + seed}:{step}")
    if stage and rng.random() < REVIEW_SHARE:
        stage = rng.randrange(stage)
    plan = STAGES[stage]
    difficulty = "ledger" if rng.random() < LEDGER_SHARE else "registers"
    entries, leaves = rng.randint(*plan.entries), rng.randint(*plan.leaves)
    first = encode(draw_problem(rng, difficulty, entries, leaves))
    size = max(1, tokens // len(first[0] + first[1]))
    rows, positions = [], []
    for _ in range(size):
        prompt, chain = encode(draw_problem(rng, difficulty, entries, leaves, "", plan.constants))
        rows.append(prompt + chain)
        positions.append(draw_positions(rng, difficulty, leaves, entries, len(rows[-1]), plan.span))
    return Batch(difficulty, torch.tensor(rows), torch.tensor(positions), len(first[0]), leaves, entries)


def encode(problem: Problem) -> tuple[list[int], list[int]]:
    """Token ids of prompt and chain, as the tokenizer gives them but a hundred times faster."""
    prompt = [_IDS[BOS]] + [_IDS[word] for word in problem.prompt.split()]
    chain = [_IDS[word] for word in problem.chain.split()[:-1]]
    return prompt, chain + [_IDS[digit] for digit in problem.answer] + [_IDS[EOS]]


def draw_positions(rng: random.Random, difficulty: str, leaves: int, entries: int, tokens: int, span: int) -> list[int]:
    """Position ids of one program: consecutive inside an entry, with random skips between entries.

    A skip is a whole number of entries, as if entries had been cut out of a longer program.
    """
    prompt_step, chain_step = PROMPT_ENTRY_TOKENS, ENTRY_TOKENS[difficulty]
    prompt_start = 1 + 3 * leaves
    chain_start = prompt_start + prompt_step * entries + 9
    borders = [(prompt_start + prompt_step * i, prompt_step) for i in range(entries + 1)]
    borders += [(chain_start + chain_step * i, chain_step) for i in range(entries + 1)]
    room = rng.randint(0, max(0, span - tokens))
    skips = [0] * tokens
    for _ in range(rng.randint(1, 8)):  # few large skips in one program, many small ones in another
        border, step = rng.choice(borders)
        count = rng.randint(0, room // step)
        skips[border] += count * step
        room -= count * step
    positions, here = [], -1
    for skip in skips:
        here += 1 + skip
        positions.append(here)
    return positions


_IDS = {word.strip(): i for word, i in vocabulary().items()}
