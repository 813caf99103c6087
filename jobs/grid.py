"""From a sweep to its cells, and from a cell to its identity.

A cell is one (model, benchmark, policy) under one protocol. Its fingerprint is a hash over the whole resolved
configuration, so equal cells of different sweeps share their samples and a changed default starts new ones. How many
problems and repeats are run is left out: extending them computes only what is new.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jobs.benchmarks.base import Benchmark, Sampling, SamplingOverrides
from jobs.benchmarks.catalog import parse_benchmarks
from jobs.revision import Revision, model_revision
from jobs.spec import EngineSpec, Sweep
from tiercache.errors import BenchmarkError, ModelError
from tiercache.model_spec import ModelSpec
from tiercache.policy import Policy

SCHEMA_VERSION = 1  # raise it when the meaning of a field changes, so that old results are not taken for new ones


@dataclass(frozen=True)
class Cell:
    """One point of the grid. Two cells are equal if their fingerprints are.

    fingerprint  20 hex digits over `config`.
    protocol     the same without the policy: cells of one protocol may be compared, problem by problem.
    config       the whole resolved configuration as plain data.
    n            how many problems, the first ones of the benchmark; `repeats`: samples of each.
    """

    fingerprint: str
    protocol: str
    model: ModelSpec = field(compare=False)
    model_revision: Revision = field(compare=False)
    benchmark: Benchmark = field(compare=False, repr=False)
    policy: Policy = field(compare=False)
    sampling: Sampling = field(compare=False)
    engine: EngineSpec = field(compare=False)
    seed: int = field(compare=False)
    repeats: int = field(compare=False)
    n: int = field(compare=False)
    config: Mapping[str, Any] = field(compare=False, repr=False)

    @property
    def samples(self) -> int:
        return self.n * self.repeats

    @property
    def label(self) -> str:
        """`reasoner · chain · h2o budget=0.5`, for logs and progress."""
        return f"{self.model.name} · {self.benchmark.label} · {self.policy.label}"


def canonical(data: object) -> str:
    """JSON with one spelling: sorted keys, no blanks."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def fingerprint(data: object) -> str:
    """First 20 hex digits of the SHA-256 over canonical JSON."""
    return hashlib.sha256(canonical(data).encode()).hexdigest()[:20]


def resolve_sampling(benchmark: Benchmark, overrides: SamplingOverrides) -> Sampling:
    """The benchmark's own defaults, with what the sweep says put over them, and over that what its own entry says."""
    own = (benchmark.options.sampling or SamplingOverrides()).model_dump(exclude_none=True)
    return benchmark.sampling.model_copy(update={**overrides.model_dump(exclude_none=True), **own})


def expand(sweep: Sweep, benchmarks: Sequence[Benchmark] | None = None) -> list[Cell]:
    """The cells of a sweep: model by model, benchmark by benchmark, policies in file order, duplicates left out.

    Reads the benchmarks' data and hashes local models, but loads none. Without `benchmarks` they are built from the
    sweep.

    Raises:
        BenchmarkError, ModelError, PolicyError: data or a model are missing, or an entry is wrong.
    """
    benchmarks = parse_benchmarks(sweep.benchmarks) if benchmarks is None else benchmarks
    policies = sweep.resolved_policies()
    cells: dict[str, Cell] = {}
    models = [(spec, _revision(spec, f"models[{i}]")) for i, spec in enumerate(sweep.model_specs())]
    for spec, revision in models:
        for index, general in enumerate(benchmarks):
            benchmark, n = _fitted(general, spec, f"benchmarks[{index}]")
            for policy in policies:
                cell = _cell(sweep, spec, revision, benchmark, n, policy)
                known = cells.get(cell.fingerprint)
                # The same benchmark listed twice with different n is one cell with the larger n.
                if known is None or known.n < cell.n:
                    cells[cell.fingerprint] = cell
    return list(cells.values())


def sample_seed(cell: Cell, problem_id: str, repeat: int) -> int:
    """The seed of one sample, 63 bits. It is the same for all policies (common random numbers), so that policies are
    compared on equal draws, and doesn't depend on batch order or on who computes it."""
    text = f"{cell.protocol}\0{problem_id}\0{repeat}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big") >> 1


def _cell(sweep: Sweep, spec: ModelSpec, revision: Revision, benchmark: Benchmark, n: int, policy: Policy) -> Cell:
    sampling = resolve_sampling(benchmark, sweep.sampling)
    shared: dict[str, Any] = {
        "schema": SCHEMA_VERSION,
        "model": {
            "id": revision.id,
            "revision": revision.revision,
            "gguf": None if spec.local else spec.gguf,
            "dtype": spec.dtype,
        },
        "benchmark": benchmark.config(),
        "sampling": sampling.model_dump(mode="json"),
        "seed": sweep.seed,
        "engine": {"prefill_chunk": sweep.engine.prefill_chunk},
    }
    config = {**shared, "policy": policy.config()}
    return Cell(
        fingerprint=fingerprint(config),
        protocol=fingerprint(shared),
        model=spec,
        model_revision=revision,
        benchmark=benchmark,
        policy=policy,
        sampling=sampling,
        engine=sweep.engine,
        seed=sweep.seed,
        repeats=sweep.repeats,
        n=n,
        config=config,
    )


def _revision(spec: ModelSpec, where: str) -> Revision:
    try:
        return model_revision(spec)
    except ModelError as problem:
        raise ModelError(f"{where}.id: {problem}") from None


def _fitted(benchmark: Benchmark, spec: ModelSpec, where: str) -> tuple[Benchmark, int]:
    """The benchmark as it is put to this model, and how many problems it has."""
    try:
        fitted = benchmark.for_model(spec)
        return fitted, len(fitted.load())
    except BenchmarkError as problem:
        raise BenchmarkError(f"{where}: {problem}") from None
