"""Fetching what a sweep needs once, so that it then runs with the hub out of reach."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs.benchmarks import prepared
from jobs.benchmarks.base import Benchmark
from jobs.benchmarks.catalog import parse_benchmarks, registry
from jobs.benchmarks.local_files import find, read
from jobs.benchmarks.source import Source
from tiercache.errors import BenchmarkError, ModelError
from tiercache.model_spec import EMBEDDED, ModelSpec
from tiercache.strict import nearest

WEIGHTS = ("*.safetensors", "*.json", "*.jinja", "*.model", "*.txt")  # no pickles, which could run code


@dataclass(frozen=True)
class Prepared:
    """A data set or a model that is here now: its name, where it is, and what is known of it."""

    name: str
    place: Path
    known: dict[str, Any]


def benchmarks_named(what: str) -> list[Benchmark]:
    """One benchmark by name, with the task after a slash where it has several (`longbench/qasper`).

    Raises:
        BenchmarkError: there is none of that name.
    """
    name, _, task = what.partition("/")
    if name not in registry():
        raise BenchmarkError(
            f"prepare: {what!r} is neither a sweep file nor a benchmark.{nearest(what, registry())} "
            f"Benchmarks: {', '.join(registry())}."
        )
    return parse_benchmarks([{"name": name, **({"task": task} if task else {})}])


def prepare_data(benchmarks: Sequence[Benchmark], data: Path | None, out: Path | None) -> Iterator[Prepared]:
    """Keeps the rows of each benchmark that has any, and checks them: columns, references under their own grader.

    Args:
        data: local file or folder to read instead of the hub.
        out: where to keep them; default: `prepared.home()`.

    Raises:
        BenchmarkError: data are missing or malformed.
    """
    done: set[Source] = set()
    for benchmark in benchmarks:
        source = benchmark.source
        if source is None or source in done or getattr(benchmark, "given", None) is not None:
            continue
        done.add(source)
        if data is not None:
            file = find(data.expanduser(), source, benchmark.label)
            place = prepared.keep(source, (row for _, row in read(file, benchmark.label)), None, out)
        else:
            place = prepared.fetch(source, benchmark.label, out)
        count = len(type(benchmark)(benchmark.options, place / prepared.ROWS).load())
        yield Prepared(benchmark.label, place, {**prepared.manifest(place), "problems": count})


def prepare_models(specs: Sequence[ModelSpec]) -> Iterator[Prepared]:
    """Downloads configuration, tokenizer and safetensors of the models that live on the hub.

    Raises:
        ModelError: the hub can't be reached, or has no such model.
    """
    for spec in specs:
        if spec.local or spec.id == EMBEDDED:
            continue
        from huggingface_hub import snapshot_download

        wanted = [spec.gguf, "*.json"] if spec.gguf else list(WEIGHTS)
        try:
            place = Path(snapshot_download(spec.id, revision=spec.revision, allow_patterns=wanted))
        except Exception as problem:  # the hub client's failures have no common root
            first = (str(problem).splitlines() or [""])[0]
            raise ModelError(
                f"models: {spec.id} can't be downloaded ({type(problem).__name__}: {first:.200}). On a machine with "
                "network run the same command, then copy the cache that $HF_HOME names, or give a folder as the id."
            ) from None
        yield Prepared(spec.id, place, {"revision": place.name})
