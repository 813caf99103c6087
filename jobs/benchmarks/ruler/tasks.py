"""The 13 tasks of RULER (2404.06654) with the parameters that its code uses."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from tiercache.errors import BenchmarkError
from tiercache.strict import nearest

Family = Literal["niah", "vt", "cwe", "fwe", "qa"]
Metric = Literal["all", "any"]


@dataclass(frozen=True)
class Needles:
    """What is hidden in what, and how much of it is asked for."""

    haystack: Literal["noise", "prose", "needles"]
    key: Literal["words", "uuids"] = "words"
    value: Literal["numbers", "uuids"] = "numbers"
    keys: int = 1
    values: int = 1  # of each key
    queries: int = 1  # keys asked for


@dataclass(frozen=True)
class Task:
    """One task. `metric`: `all` scores the share of answers found, `any` whether one of them is."""

    name: str
    family: Family
    max_new_tokens: int
    metric: Metric = "all"
    needles: Needles | None = None
    questions: Literal["squad", "hotpotqa"] | None = None


def _niah(name: str, needles: Needles) -> Task:
    return Task(name, "niah", 128, needles=needles)


_TASKS = (
    _niah("niah_single_1", Needles("noise")),
    _niah("niah_single_2", Needles("prose")),
    _niah("niah_single_3", Needles("prose", value="uuids")),
    _niah("niah_multikey_1", Needles("prose", keys=4)),
    _niah("niah_multikey_2", Needles("needles")),
    _niah("niah_multikey_3", Needles("needles", key="uuids", value="uuids")),
    _niah("niah_multivalue", Needles("prose", values=4)),
    _niah("niah_multiquery", Needles("prose", keys=4, queries=4)),
    Task("vt", "vt", 30),
    Task("cwe", "cwe", 120),
    Task("fwe", "fwe", 50),
    Task("qa_1", "qa", 32, "any", questions="squad"),
    Task("qa_2", "qa", 32, "any", questions="hotpotqa"),
)
TASKS: Mapping[str, Task] = MappingProxyType({task.name: task for task in _TASKS})


def find_task(name: str) -> Task:
    """The task of that name; raises BenchmarkError with the nearest right one."""
    if name not in TASKS:
        raise BenchmarkError(f"ruler.task: unknown task {name!r}.{nearest(name, TASKS)} Allowed: {', '.join(TASKS)}.")
    return TASKS[name]
