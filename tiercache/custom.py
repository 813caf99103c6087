"""A user's own scorer: from a file, or from an installed package's entry point. No torch here.

A file's text travels with the policy: actors on other machines need no copy of the file, and a cell's fingerprint
changes with every character of it.
"""

import sys
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from pydantic import Field

from tiercache.catalog.base import Signal
from tiercache.errors import PolicyError

GROUP = "tiercache.scorers"


class _Own(Signal):
    implementation: ClassVar[str] = ""
    options: dict[str, Any] = Field(default_factory=dict)  # handed to the class as keyword arguments

    def __hash__(self) -> int:
        return hash(self.model_dump_json())


class FileSignal(_Own):
    """A class in a Python file; `source` is the file's text."""

    source: str


class PackageSignal(_Own):
    """A class that an installed package offers; `package` is its name==version, part of the fingerprint."""

    package: str


def is_custom(scorer: str) -> bool:
    """Whether the name is that of a file's class or of an entry point."""
    return ".py:" in scorer or _entry_point(scorer) is not None


def read_custom(scorer: str, where: str) -> tuple[type[Signal], dict[str, Any]]:
    """The kind of signal, and the fields that the user doesn't give.

    Raises:
        PolicyError: no such file, or the file has no such class.
    """
    if ".py:" not in scorer:
        found = _entry_point(scorer)
        assert found, "is_custom has found it"
        assert found.dist, "an installed entry point has a distribution"
        return PackageSignal, {"package": f"{found.dist.name}=={found.dist.version}"}
    path, _, name = scorer.rpartition(":")
    try:
        source = Path(path).expanduser().read_text(encoding="utf-8")
    except OSError as problem:
        raise PolicyError(f"{where}: can't read '{path}': {problem.strerror}.") from None
    if f"class {name}" not in source:
        raise PolicyError(f"{where}: '{path}' has no class '{name}'; write path/to/file.py:Class.")
    return FileSignal, {"source": source}


def load_custom(signal: Signal) -> type:
    """The class itself. Runs the user's code."""
    if isinstance(signal, FileSignal):
        path, _, name = signal.scorer.rpartition(":")
        module = ModuleType(f"tiercache_custom_{Path(path).stem}")
        sys.modules[module.__name__] = module  # dataclasses look their own module up
        exec(compile(signal.source, path, "exec"), module.__dict__)  # the file that the user's own sweep names
        return getattr(module, name)  # type: ignore[no-any-return]
    found = _entry_point(signal.scorer)
    if found is None:
        raise PolicyError(f"scorer: the package that offers '{signal.scorer}' is not installed on this machine.")
    return found.load()  # type: ignore[no-any-return]


def _entry_point(name: str) -> EntryPoint | None:
    return next(iter(entry_points(group=GROUP, name=name)), None)
