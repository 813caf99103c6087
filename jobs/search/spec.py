"""What a search file says, checked before anything is written or started. Neither torch nor Optuna is imported here."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import Field

from jobs.benchmarks.base import Benchmark, SamplingOverrides
from jobs.benchmarks.catalog import parse_benchmarks
from jobs.search.rivals import RIVALS, open_entries
from jobs.search.space import Choices, narrowed
from jobs.spec import ClusterSpec, Count, EngineSpec, ModelEntry, NamedEntry
from jobs.yaml_file import read_yaml
from tiercache.errors import BenchmarkError, ModelError, SpecError, TierCacheError
from tiercache.model_spec import ModelSpec
from tiercache.parts import Ratio
from tiercache.shapes import shape_of
from tiercache.strict import Strict

PartName = Literal["screen", "search", "report"]
PARTS: tuple[PartName, ...] = get_args(PartName)
From = Annotated[int, Field(ge=0, le=1_000_000, strict=True)]


class MemoryBudget(Strict):
    """What a policy may hold, mean over a sequence's decode steps.

    bytes   share of the full cache's keys and values at the same steps.
    memory  `all` counts tokens in device and host memory, `device` only the former. Quantised tokens count with their
            scales and zero points. Positions, slot fields and kept codes count too.
    """

    bytes: Ratio
    memory: Literal["all", "device"] = "all"


class SearchPart(Strict):
    """Problems on which trials are run: `n` of them, after the first `skip`.

    screen  the first so many decide whether a trial is worth the others; see `trials.worth_all`.
    """

    n: Count
    skip: From = 0
    screen: Count | None = None


class ReportPart(Strict):
    """Problems that no trial has seen. By default they begin where the search's end.

    top  candidates that are reported; the first of them is the search's answer.
    """

    n: Count
    skip: From | None = None
    top: Annotated[int, Field(ge=1, le=100, strict=True)] = 3


class Search(Strict):
    """A search file.

    trials  policies that are run on the problems of `search`, the presets not counted.
    batch   how many are proposed, and run, together. More suits more workers; fewer let each proposal know more.
    seed    of the proposals, and of sampling as in a sweep.
    rivals  presets to beat, as in a sweep; one knob of each may be `fit`. By default all that can be made to fit.
    space   fewer or other values for some of the knobs; see docs/search.md.
    """

    name: Annotated[str, Field(min_length=1, max_length=120, strict=True)]
    model: ModelEntry
    benchmark: NamedEntry
    budget: MemoryBudget
    trials: Annotated[int, Field(ge=1, le=10_000, strict=True)]
    batch: Annotated[int, Field(ge=1, le=1_000, strict=True)] = 4
    seed: Annotated[int, Field(ge=0, lt=2**32, strict=True)] = 0
    search: SearchPart
    report: ReportPart
    rivals: Annotated[list[NamedEntry], Field(min_length=1)] | None = None
    space: dict[str, list[Any]] = Field(default_factory=dict)
    sampling: SamplingOverrides = SamplingOverrides()
    engine: EngineSpec = EngineSpec()
    cluster: ClusterSpec = ClusterSpec()
    database: Annotated[str, Field(min_length=1, strict=True)] | None = None

    @property
    def held_out_from(self) -> int:
        """Where the held-out problems begin."""
        return self.search.skip + self.search.n if self.report.skip is None else self.report.skip

    def problems(self, part: PartName) -> range:
        """Their places in the benchmark's order."""
        first = self.search.skip
        if part == "screen":
            return range(first, first + (self.search.screen or self.search.n))
        if part == "search":
            return range(first, first + self.search.n)
        return range(self.held_out_from, self.held_out_from + self.report.n)

    def choices(self) -> Choices:
        """The values of each knob that are tried."""
        return narrowed(self.space)

    def rival_entries(self) -> list[dict[str, Any]]:
        """The presets to beat, lists expanded; `fit` is still in them."""
        return open_entries(RIVALS if self.rivals is None else self.rivals)

    def benchmark_entry(self, part: PartName) -> dict[str, Any]:
        """The benchmark's entry in a sweep over these problems."""
        where = self.problems(part)
        return {**self.benchmark, "n": len(where), **({"skip": where.start} if where.start else {})}


def parse_search(data: object) -> Search:
    """Checks plain data completely, but reads neither a benchmark's data nor a model.

    Raises:
        SpecError, ModelError, BenchmarkError, PolicyError: whichever part is wrong.
    """
    if not isinstance(data, Mapping) or not all(isinstance(key, str) for key in data):
        raise SpecError(f"a search is a mapping with the keys {', '.join(Search.model_fields)}.")
    search = Search.parse(data, "", SpecError)
    for key in ("n", "skip"):
        if key in search.benchmark:
            raise SpecError(f"benchmark.{key}: leave it out; search.{key} and report.{key} say which problems.")
    ours, held_out = search.problems("search"), search.problems("report")
    if max(ours.start, held_out.start) < min(ours.stop, held_out.stop):
        raise SpecError(
            f"report.skip: the held-out problems {held_out.start} to {held_out.stop - 1} overlap those of the search, "
            f"{ours.start} to {ours.stop - 1}; allowed: {ours.stop} or more, or leave it out."
        )
    if search.search.screen is not None and search.search.screen >= search.search.n:
        raise SpecError(f"search.screen: {search.search.screen} problems; allowed: fewer than n, {search.search.n}.")
    spec = ModelSpec.parse(search.model, "model", ModelError)
    for part in PARTS:
        _benchmark(search, part)
    search.choices()
    search.rival_entries()
    if shape_of(spec) is None:
        raise ModelError(f"model.id: the dimensions of '{spec.id}' aren't known here; give the model's folder.")
    return search


def load_search(path: Path) -> Search:
    """Reads and checks a search file; every line of an error begins with the file's name.

    Raises:
        SpecError, ModelError, BenchmarkError, PolicyError: the file is missing or says something impossible.
    """
    data = read_yaml(path)
    try:
        return parse_search(data)
    except TierCacheError as problem:
        raise type(problem)("\n".join(f"{path}: {line}" for line in str(problem).splitlines())) from None


def load_benchmarks(search: Search, data: Path | None = None) -> dict[PartName, Benchmark]:
    """The benchmark with each part's problems, as it is put to the model.

    Raises:
        BenchmarkError: the data are missing or malformed, there are too few, or a prompt is in both parts.
    """
    spec = ModelSpec.parse(search.model, "model", ModelError)
    parts: dict[PartName, Benchmark] = {part: _benchmark(search, part, data).for_model(spec) for part in PARTS}
    seen = {problem.prompt for problem in parts["search"].load()}
    twice = [problem.id for problem in parts["report"].load() if problem.prompt in seen]
    if twice:
        raise BenchmarkError(
            f"report: {len(twice)} of its prompts are among the search's too ({', '.join(twice[:3])}), so they aren't "
            "held out; mend the data, or give another report.skip."
        )
    return parts


def _benchmark(search: Search, part: PartName, data: Path | None = None) -> Benchmark:
    try:
        return parse_benchmarks([search.benchmark_entry(part)], data)[0]
    except BenchmarkError as problem:
        raise BenchmarkError(str(problem).replace("benchmarks[0]", "benchmark")) from None
