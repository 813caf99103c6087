"""A user's own scorer: from a file, or from an installed package's entry point. No torch here.

A file's text travels with the policy: actors on other machines need no copy of the file, and a cell's fingerprint
changes with every character of it. Where the file lies is no part of it.
"""

import ast
import hashlib
import json
import sys
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, Field

from tiercache.catalog.base import Signal
from tiercache.errors import PolicyError
from tiercache.strict import nearest

GROUP = "tiercache.scorers"


def _plain(value: dict[str, Any]) -> dict[str, Any]:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        raise ValueError("takes text, finite numbers, true, false, null, and lists and mappings of these") from None
    return value


class _Own(Signal):
    """`options` are handed to the class as keyword arguments."""

    implementation: ClassVar[str] = ""
    thoughts: ClassVar[bool] = True  # only the class itself knows
    options: Annotated[dict[str, Any], AfterValidator(_plain)] = Field(default_factory=dict)

    def __hash__(self) -> int:
        return hash(self.model_dump_json())


class FileSignal(_Own):
    """A class in a Python file; `source` is the file's text, and `scorer` its name without the folder."""

    source: str


class PackageSignal(_Own):
    """A class that an installed package offers; `package` is its name==version, part of the fingerprint."""

    package: str


def is_custom(scorer: str) -> bool:
    """Whether the name is that of a file's class or of an entry point."""
    return ".py:" in scorer or _entry_point(scorer) is not None


def read_custom(scorer: str, where: str) -> tuple[type[Signal], dict[str, Any]]:
    """The kind of signal, and the fields that the user doesn't give. Reads the file, and runs nothing.

    Raises:
        PolicyError: no such file, it isn't Python, or it has no such class.
    """
    if ".py:" not in scorer:
        found = _entry_point(scorer)
        assert found, "is_custom has found it"
        assert found.dist, "an installed entry point has a distribution"
        return PackageSignal, {"package": f"{found.dist.name}=={found.dist.version}"}
    path, _, name = scorer.rpartition(":")
    try:
        source = Path(path).expanduser().read_text(encoding="utf-8-sig")
    except OSError as problem:
        raise PolicyError(f"{where}: can't read '{path}': {problem.strerror}.") from None
    except UnicodeDecodeError as problem:
        raise PolicyError(f"{where}: '{path}' isn't UTF-8 text (byte {problem.start}).") from None
    try:
        classes = [node.name for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
    except (SyntaxError, ValueError) as problem:
        line = f", line {problem.lineno}" if isinstance(problem, SyntaxError) else ""
        raise PolicyError(f"{where}: '{path}'{line} isn't Python: {getattr(problem, 'msg', problem)}.") from None
    if name not in classes:
        others = f"It has: {', '.join(classes)}." if classes else "It has none; write path/to/file.py:Class."
        raise PolicyError(f"{where}: '{path}' has no class '{name}'.{nearest(name, classes)} {others}")
    return FileSignal, {"scorer": f"{Path(path).name}:{name}", "source": source}


def load_custom(signal: Signal) -> type:
    """The class itself. Runs the user's code, once in a process for each text."""
    if isinstance(signal, FileSignal):
        return getattr(_module(signal), signal.scorer.rpartition(":")[2])  # type: ignore[no-any-return]
    found = _entry_point(signal.scorer)
    if found is None:
        raise PolicyError(f"scorer: the package that offers '{signal.scorer}' is not installed on this machine.")
    return found.load()  # type: ignore[no-any-return]


def _module(signal: FileSignal) -> ModuleType:
    """The file as a module. Its name holds a hash of the text: files of one name don't replace each other."""
    path = signal.scorer.rpartition(":")[0]
    name = f"tiercache_custom_{Path(path).stem}_{hashlib.sha256(signal.source.encode()).hexdigest()[:12]}"
    if name not in sys.modules:
        module = sys.modules[name] = ModuleType(name)  # dataclasses look their own module up while it is made
        try:
            exec(compile(signal.source, path, "exec"), module.__dict__)  # the file that the user's own sweep names
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


def _entry_point(name: str) -> EntryPoint | None:
    return next(iter(entry_points(group=GROUP, name=name)), None)
