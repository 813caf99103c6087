"""The benchmarks by name, and building those of a sweep."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jobs.benchmarks.base import Benchmark
from tiercache.errors import BenchmarkError
from tiercache.strict import nearest


def registry() -> dict[str, type[Benchmark]]:
    """The benchmarks by name."""
    from jobs.benchmarks.arc import ArcChallenge
    from jobs.benchmarks.chain import Chain
    from jobs.benchmarks.competition import Aime2024, Math500, MathLevel5
    from jobs.benchmarks.gsm8k import Gsm8k
    from jobs.benchmarks.jsonl import Jsonl
    from jobs.benchmarks.longbench.benchmark import LongBench
    from jobs.benchmarks.ruler.benchmark import Ruler

    kinds: tuple[type[Benchmark], ...] = (
        Chain,
        Gsm8k,
        Math500,
        MathLevel5,
        Aime2024,
        ArcChallenge,
        LongBench,
        Ruler,
        Jsonl,
    )
    return {benchmark.name: benchmark for benchmark in kinds}


def parse_benchmarks(entries: Sequence[Mapping[str, Any]], data: Path | None = None) -> list[Benchmark]:
    """Builds the benchmarks of a sweep; nothing is read yet.

    Args:
        entries: mappings with `name` and the benchmark's options.
        data: local file or folder for those that name none themselves (`--data`).

    Raises:
        BenchmarkError: unknown name or option, or a value out of range.
    """
    known = registry()
    benchmarks = []
    for index, entry in enumerate(entries):
        where, options = f"benchmarks[{index}]", dict(entry)
        name = options.pop("name", None)
        if not isinstance(name, str) or name not in known:
            hint = nearest(name, known) if isinstance(name, str) else ""
            problem = "is required" if name is None else f"unknown benchmark {name!r}"
            raise BenchmarkError(f"{where}.name: {problem}.{hint} Allowed: {', '.join(known)}.")
        kind = known[name]
        benchmarks.append(kind(kind.options_type.parse(options, where, BenchmarkError), data))
    return benchmarks
