"""Register programs for the embedded reasoner: generated, held out from its training, graded exactly.

Each value of the chain of thought is read again at an unpredictable later time, so what a policy throws away shows in
the answer. Generating the problems needs no network and no files.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from jobs.benchmarks.base import GREEDY, Benchmark, Options, Problem, Sampling, check_gold, content_hash
from jobs.grading import Grade, grade_digits
from reasoner.grammar import DEFAULT_ENTRIES, DEFAULT_LEAVES, NAMES, QUERIES, TRAIN_SEED_BASE, make_problem
from tiercache.rendering import Rendering

_FINGERPRINTED = 16  # problems that stand for the generator in the data revision
_TOKENS_PER_ENTRY = 9  # the longer of the two difficulties
_TOKENS_OF_ANSWER = 32  # queries, `####`, digits, end of sequence, rounded up


def _range(value: object) -> object:
    """`36` means always 36; the long form is `[24, 47]`, both included."""
    if isinstance(value, bool):
        raise ValueError("is a whole number or a pair [low, high]")
    return (value, value) if isinstance(value, int) else value


Whole = Annotated[int, Field(ge=1, strict=True)]
Range = Annotated[tuple[Whole, Whole], BeforeValidator(_range)]


class ChainOptions(Options):
    """Options of a chain entry.

    difficulty  `registers`: each value is read once, later, unannounced. `ledger`: each result is read by the next
                line too, which makes it easy to rank.
    seed        of the problems; all seeds below 2**32 are held out from training.
    entries     lines of a program, a number or [low, high]. The more, the longer the chain.
    leaves      values given at the start, a number or [low, high].
    """

    n: Annotated[int, Field(ge=1, le=1_000_000, strict=True)] = 200
    difficulty: Literal["registers", "ledger"] = "registers"
    seed: Annotated[int, Field(ge=0, lt=TRAIN_SEED_BASE, strict=True)] = 12345
    entries: Range = DEFAULT_ENTRIES
    leaves: Range = DEFAULT_LEAVES

    @model_validator(mode="after")
    def _fits(self) -> "ChainOptions":
        for name, (low, high) in (("entries", self.entries), ("leaves", self.leaves)):
            if low > high:
                raise ValueError(f"{name} [{low}, {high}] is not a range; the first has to be the smaller")
        if self.leaves[0] < len(QUERIES):
            raise ValueError(f"leaves start at {self.leaves[0]}; allowed: {len(QUERIES)} or more")
        if self.entries[1] + self.leaves[1] > NAMES:
            total = self.entries[1] + self.leaves[1]
            raise ValueError(f"entries and leaves need up to {total} names together; allowed: at most {NAMES}")
        return self


class Chain(Benchmark):
    """Straight-line programs; the answer is the four digits after `####`, compared as a string."""

    name: ClassVar[str] = "chain"
    summary: ClassVar[str] = "generated register programs for the embedded reasoner, four-digit answers"
    paper: ClassVar[str] = "this project"
    metric: ClassVar[str] = "the four digits after ####, as written"
    options_type: ClassVar[type[Options]] = ChainOptions
    reads_files: ClassVar[bool] = False
    typical_prompt_tokens: ClassVar[int] = 217
    typical_problems: ClassVar[int] = 200
    options: ChainOptions

    def __init__(self, options: Options | None = None, data: Path | None = None) -> None:
        super().__init__(options, data)
        longest = _TOKENS_PER_ENTRY * self.options.entries[1] + _TOKENS_OF_ANSWER
        self.sampling = Sampling(**GREEDY, max_new_tokens=max(512, longest))

    @property
    def rendering(self) -> Rendering:
        return Rendering()

    @property
    def grader(self) -> str:
        return "digits/2"

    @property
    def local(self) -> bool:
        return True

    @property
    def revision(self) -> str:
        """Hash of the first problems: it changes with the generator, and not with `n`."""
        return content_hash([p.id, p.prompt, p.reference] for p in map(self._problem, range(_FINGERPRINTED)))

    def load_all(self) -> list[Problem]:
        problems = [self._problem(index) for index in range(self.options.skip + self.options.n)]
        for problem in problems:
            check_gold(self, problem, problem.meta["chain"], f"chain: {problem.id}")
        return problems

    def _problem(self, index: int) -> Problem:
        made = make_problem(
            self.options.difficulty,
            self.options.seed,
            index,
            entries=self.options.entries,
            leaves=self.options.leaves,
        )
        meta: Mapping[str, Any] = {"chain": made.chain, "entries": made.entries}
        # Zero-padded, so that the order by id is the order of the problems.
        name = f"{self.options.difficulty}-{self.options.seed}-{index:06d}"
        return Problem(name, made.prompt, made.answer, meta)

    def grade(self, reference: str, output: str, finish_reason: str, *, thinking_open: bool = False) -> Grade:
        return grade_digits(output, reference, finish_reason, thinking_open=thinking_open)
