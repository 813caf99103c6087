"""What a sweep file says, checked before anything is written or started.

A sweep is a grid of benchmark × policy × model. Reading one needs neither torch nor `datasets` nor Ray, so a wrong
file is refused in well under a second, with the field, the value, what is allowed and the nearest right name.
"""

import itertools
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, Field

from jobs.benchmarks.base import SamplingOverrides
from jobs.benchmarks.catalog import parse_benchmarks
from jobs.yaml_file import read_yaml
from tiercache.errors import ModelError, SpecError, TierCacheError
from tiercache.model_spec import ModelSpec
from tiercache.policy import Policy, parse_policy
from tiercache.strict import Strict

MAX_POLICIES = 10_000

Count = Annotated[int, Field(ge=1, strict=True)]
Real = Annotated[float, Field(strict=True)]
T = TypeVar("T")

_UNITS = {"": 1, "b": 1} | {
    prefix + suffix: base**power
    for power, prefix in enumerate(("k", "m", "g", "t"), start=1)
    for suffix, base in (("b", 1000), ("ib", 1024))
}


def parse_bytes(value: object) -> object:
    """`268435456`, `"256MiB"`, `"1.5 GB"`: bytes, as an int. Anything else is a ValueError; None stays None."""
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    match = re.fullmatch(r"\s*(\d{1,18}(?:\.\d{1,9})?)\s*([A-Za-z]*)\s*", value) if isinstance(value, str) else None
    if match is None or match[2].lower() not in _UNITS:
        raise ValueError("is a number of bytes (268435456) or a size such as 256MiB or 1.5GB")
    return round(float(match[1]) * _UNITS[match[2].lower()])


def _entry(key: str) -> Callable[[object], object]:
    """A bare name stands for a mapping with nothing but that name."""

    def check(value: object) -> object:
        if isinstance(value, str):
            return {key: value}
        if isinstance(value, Mapping):
            if all(isinstance(name, str) for name in value):
                return dict(value)
            raise ValueError("has a key that isn't text; quote it")
        raise ValueError(f"is a name or a mapping such as {{{key}: ...}}")

    return check


NamedEntry = Annotated[dict[str, Any], BeforeValidator(_entry("name"))]
ModelEntry = Annotated[dict[str, Any], BeforeValidator(_entry("id"))]


class EngineSpec(Strict):
    """How one engine runs.

    max_batch      most sequences decoded together.
    hbm_kv_budget  device bytes that the KV caches of a batch may take (admission); null means no limit.
    prefill_chunk  prompt tokens per forward pass of the prefill. Sums of attention depend on it in the last digits,
                   so it is part of a cell's identity; the other fields here are not.
    device         `auto` takes CUDA where there is one.
    threads        intra-op CPU threads of each actor; null leaves it to its CPU share.
    """

    max_batch: Count = 64
    hbm_kv_budget: Annotated[Annotated[int, Field(ge=1)] | None, BeforeValidator(parse_bytes)] = None
    prefill_chunk: Count = 512
    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: Count | None = None


class ClusterSpec(Strict):
    """Where the work runs.

    gpus_per_actor  GPUs of each actor, all of one node; null decides: none where the cluster has none, else as many as
                    the model takes. Over more than 1 its layers are dealt out.
    cpus_per_actor  CPUs reserved for each actor.
    max_actors      most actors at once; null uses what the cluster has.
    shard_size      samples handed to an actor at a time: the unit of retry.
    max_attempts    how often a sample may be tried before it is recorded as failed.
    stall_s         seconds after which a worker that has sent nothing of its shard is taken for hung and replaced. A
                    shard sends its first sample when the shortest has ended.
    alone           one worker a node, so that nothing else of this sweep disturbs what is measured there.
    """

    gpus_per_actor: Annotated[Real, Field(ge=0.0, le=64.0)] | None = None
    cpus_per_actor: Annotated[Real, Field(gt=0.0, le=1024.0)] = 1.0
    max_actors: Count | None = None
    shard_size: Count = 64
    max_attempts: Annotated[int, Field(ge=1, le=100, strict=True)] = 3
    stall_s: Annotated[Real, Field(gt=0.0, le=604_800.0)] = 3600.0
    alone: Annotated[bool, Field(strict=True)] = False


class Sweep(Strict):
    """A sweep file. A list as the value of a policy's knob expands into the grid.

    diagnostics  measure each sequence against the full cache once it has ended. It changes no sample, so it is no part
                 of a cell's identity.
    tier_maps    so many of each cell's first problems write down, in their first repeat, where each token lay. It
                 changes no sample either.
    """

    name: Annotated[str, Field(min_length=1, max_length=200, strict=True)]
    models: Annotated[list[ModelEntry], Field(min_length=1)]
    benchmarks: Annotated[list[NamedEntry], Field(min_length=1)]
    policies: Annotated[list[NamedEntry], Field(min_length=1)]
    repeats: Annotated[int, Field(ge=1, le=100_000, strict=True)] = 1
    seed: Annotated[int, Field(ge=0, lt=2**63, strict=True)] = 0
    sampling: SamplingOverrides = SamplingOverrides()
    engine: EngineSpec = EngineSpec()
    cluster: ClusterSpec = ClusterSpec()
    diagnostics: Annotated[bool, Field(strict=True)] = False
    tier_maps: Annotated[int, Field(ge=0, le=1000, strict=True)] = 0
    database: Annotated[str, Field(min_length=1, strict=True)] | None = None

    def model_specs(self) -> list[ModelSpec]:
        """The models, checked. Whether they exist is asked later, when their revision is taken."""
        return [ModelSpec.parse(entry, f"models[{i}]", ModelError) for i, entry in enumerate(self.models)]

    def resolved_policies(self) -> list[Policy]:
        """The policies in file order, lists expanded, duplicates left out (two spellings of one configuration)."""
        expanded = [policy for i, entry in enumerate(self.policies) for policy in _expand(entry, f"policies[{i}]")]
        unique: list[Policy] = []
        seen = set()
        for policy in expanded:
            key = repr(policy.config())
            if key not in seen:
                seen.add(key)
                unique.append(policy)
        return unique


def _expand(entry: Mapping[str, Any], where: str) -> list[Policy]:
    lists = {knob: value for knob, value in entry.items() if isinstance(value, list)}
    for knob, values in lists.items():
        if not values:
            raise SpecError(f"{where}.{knob}: the list is empty; give at least one value or leave the key out.")
    points = math.prod(len(values) for values in lists.values())
    if points > MAX_POLICIES:
        raise SpecError(f"{where}: its lists expand into {points:,} policies; allowed: at most {MAX_POLICIES:,}.")
    grid = itertools.product(*lists.values())
    return [parse_policy({**entry, **dict(zip(lists, point, strict=True))}, where) for point in grid]


def parse_sweep(data: object) -> Sweep:
    """Checks plain data (what a YAML file holds) completely: keys, values, models, benchmarks and policies.

    Raises:
        SpecError, ModelError, BenchmarkError, PolicyError: whichever part is wrong.
    """
    if not isinstance(data, Mapping):
        raise SpecError(f"a sweep is a mapping with the keys {', '.join(Sweep.model_fields)}; got {_kind(data)}.")
    if not all(isinstance(key, str) for key in data):
        raise SpecError("a top-level key isn't text; quote it.")
    sweep = _with_indices(lambda: Sweep.parse(data, "", SpecError))
    sweep.model_specs()
    parse_benchmarks(sweep.benchmarks)
    sweep.resolved_policies()
    return sweep


def load_sweep(path: str | Path) -> Sweep:
    """Reads and checks a sweep file; every line of an error begins with the file's name.

    Raises:
        SpecError, ModelError, BenchmarkError, PolicyError: the file is missing, isn't YAML, or says something
            impossible.
    """
    data = _find_scorers(read_yaml(Path(path)), Path(path).parent)
    try:
        return parse_sweep(data)
    except TierCacheError as problem:
        lines = str(problem).splitlines()
        raise type(problem)("\n".join(f"{path}: {line}" for line in lines)) from None


def _find_scorers(data: object, folder: Path) -> object:
    """The same data; a scorer's file is looked for beside the sweep file first, then in the current folder."""

    def found(scorer: object) -> object:
        if isinstance(scorer, list):
            return [found(each) for each in scorer]
        if not isinstance(scorer, str) or ".py:" not in scorer:
            return scorer
        beside = folder / scorer
        return str(beside) if Path(str(beside).rpartition(":")[0]).is_file() else scorer

    if not isinstance(data, Mapping) or not isinstance(data.get("policies"), list):
        return data
    policies = [
        {**entry, "scorer": found(entry["scorer"])} if isinstance(entry, Mapping) and "scorer" in entry else entry
        for entry in data["policies"]
    ]
    return {**data, "policies": policies}


def _with_indices(parse: Callable[[], T]) -> T:
    """`policies.2.budget: …` becomes `policies[2].budget: …`, the way the file's author counts."""
    try:
        return parse()
    except SpecError as problem:
        lines = []
        for line in str(problem).splitlines():
            field, colon, message = line.partition(": ")
            lines.append(re.sub(r"\.(\d+)(?=\.|$)", r"[\1]", field) + colon + message)
        raise SpecError("\n".join(lines)) from None


def _kind(data: object) -> str:
    if data is None:
        return "an empty file"
    return "a list" if isinstance(data, list) else "text" if isinstance(data, str) else type(data).__name__
