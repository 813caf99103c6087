"""New verdicts on stored generations: no model, no GPU, and nothing else of a sample changes."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Engine

from db.queries import stored_generations
from db.rows import GradeRow
from db.writer import Writer
from jobs.benchmarks.base import Benchmark
from jobs.benchmarks.catalog import registry
from jobs.grading import thinking_opened
from tiercache.errors import BenchmarkError

BATCH = 500


@dataclass
class Regraded:
    """What changed in one cell: `moved` counts (before, after) outcomes of samples whose verdict is another now."""

    benchmark: str
    policy: str
    grader: str
    samples: int = 0
    moved: Counter[tuple[str, str]] = field(default_factory=Counter)


def regrade_cells(
    engine: Engine,
    writer: Writer | None,
    sweep_id: str,
    cells: Mapping[str, tuple[str, Mapping[str, Any]]],
) -> Iterator[Regraded]:
    """Judges every stored generation of these cells by this version's graders.

    Args:
        writer: None says what would change, and changes nothing.
        cells: for each fingerprint the policy's label and the cell's configuration.

    Raises:
        BenchmarkError: a cell's benchmark isn't known to this version.
    """
    for fingerprint, (policy, config) in cells.items():
        benchmark = _benchmark(config["benchmark"])
        found = Regraded(benchmark.label, policy, benchmark.grader)
        batch: list[GradeRow] = []
        for sample in stored_generations(engine, fingerprint):
            thinking = thinking_opened(sample.prompt)
            grade = benchmark.grade(sample.reference, sample.output, sample.finish_reason, thinking_open=thinking)
            found.samples += 1
            if grade.outcome != sample.outcome:
                found.moved[sample.outcome, grade.outcome] += 1
            row = GradeRow(
                fingerprint=fingerprint,
                problem_id=sample.problem_id,
                repeat=sample.repeat,
                outcome=grade.outcome,
                extracted=grade.extracted,
                score=grade.score,
                grader=benchmark.grader,
            )
            batch.append(row)
            if len(batch) >= BATCH:
                if writer is not None:
                    writer.regrade(batch)
                batch = []
        if writer is not None:
            writer.regrade(batch)
            moved = {f"{before} to {after}": count for (before, after), count in found.moved.items()}
            message = f"{found.samples} samples judged by {found.grader}"
            writer.event(sweep_id, "regraded", message, fingerprint=fingerprint, data={"moved": moved})
        yield found


def _benchmark(config: Mapping[str, Any]) -> Benchmark:
    """The benchmark of a stored configuration; its data are not needed, since samples keep their references."""
    kind = registry().get(str(config.get("name")))
    if kind is None:
        raise BenchmarkError(f"regrade: benchmark {config.get('name')!r} isn't known to this version of tiercache.")
    known = kind.options_type.model_fields
    options = {name: value for name, value in config.items() if name in known and name != "revision"}
    return kind(kind.options_type.parse(options, "regrade", BenchmarkError))
