"""ARC-Challenge (1803.05457) in its generative form: the model writes the letter of an answer.

Comparing likelihoods of the choices would take one prefill and no decoding, and so no cache policy at all.
"""

from typing import Any, ClassVar

from jobs.benchmarks.base import GREEDY, Options, Problem, Sampling
from jobs.benchmarks.files import FileBenchmark, FileOptions, text
from jobs.benchmarks.source import Row, Source
from jobs.grading import Grade
from jobs.grading.choice import grade_choice
from tiercache.errors import BenchmarkError

LETTERS = "ABCDEFGH"
INSTRUCTION = "Think it over, then end with a line of the form `Answer: <letter>`."
RAW = "Question: {question}\n{instruction}\n"


class ArcChallenge(FileBenchmark):
    """Science questions with three to five choices, so chance is not exactly a quarter."""

    name: ClassVar[str] = "arc_challenge"
    summary: ClassVar[str] = "science questions with 3 to 5 choices, answered by letter"
    paper: ClassVar[str] = "1803.05457"
    metric: ClassVar[str] = "the letter chosen"
    options_type: ClassVar[type[Options]] = FileOptions
    source = Source(
        "allenai/ai2_arc", "ARC-Challenge", "test", ("arc_challenge_test.jsonl", "arc_challenge.jsonl", "test.jsonl")
    )
    sampling = Sampling(**GREEDY, max_new_tokens=512)
    typical_prompt_tokens: ClassVar[int] = 110
    typical_problems: ClassVar[int] = 1172

    @property
    def grader(self) -> str:
        return "choice/2"

    def config(self) -> dict[str, Any]:
        return {**super().config(), "instruction": INSTRUCTION}

    def problem(self, row: Row, index: int, where: str) -> Problem:
        question, key = text(row, "question", where), text(row, "answerKey", where)
        choices = row.get("choices")
        labels, texts = (choices.get("label"), choices.get("text")) if isinstance(choices, dict) else (None, None)
        if not isinstance(labels, list) or not isinstance(texts, list) or not 2 <= len(labels) == len(texts) <= 8:
            raise BenchmarkError(f"{where}: choices has to be {{text: [...], label: [...]}}, 2 to 8 of each.")
        if labels.count(key) != 1:
            raise BenchmarkError(f"{where}: answerKey {key!r} isn't one of its labels {labels}.")
        # By place, not by character: some rows are labelled 1 to 4.
        lines = [f"{letter}. {choice}" for letter, choice in zip(LETTERS, texts, strict=False)]
        asked = "\n".join([question, *lines])
        prompt = f"{asked}\n\n{INSTRUCTION}"
        if self.prompt_mode == "raw":
            prompt = RAW.format(question=asked, instruction=INSTRUCTION)
        return Problem(f"{index:04d}-{row.get('id', 'arc')}", prompt, LETTERS[labels.index(key)])

    def gold(self, problem: Problem) -> str:
        return f"Answer: {problem.reference}"

    def grade(self, reference: str, output: str, finish_reason: str, *, thinking_open: bool = False) -> Grade:
        return grade_choice(output, reference, finish_reason, choices=LETTERS, thinking_open=thinking_open)
