"""YAML as data that a person wrote: one meaning per key, bounded size, and errors that say where."""

import difflib
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import yaml

from tiercache.errors import SpecError

MAX_BYTES = 4 * 2**20
MAX_VALUES = 200_000


class _Loader(yaml.SafeLoader):
    """SafeLoader that refuses a key given twice; plain YAML silently keeps the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                raise yaml.constructor.ConstructorError(None, None, "a key is plain text", key_node.start_mark)
            if key in seen:
                problem = f"the key '{key}' is given twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


def read_yaml(path: Path) -> object:
    """The file's content as plain data.

    Raises:
        SpecError: no such file (similar ones are named), not readable, not YAML, a key given twice, or so much
            content (by anchors, say) that no one can have meant it.
    """
    text = _read(path)
    try:
        data: object = yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as problem:
        mark = problem.problem_mark
        place = f" line {mark.line + 1}, column {mark.column + 1}:" if mark else ""
        raise SpecError(f"{path}:{place} not valid YAML: {problem.problem or problem.context}.") from None
    except RecursionError:
        raise SpecError(f"{path}: is nested too deeply.") from None
    except (yaml.YAMLError, ValueError, ArithmeticError, AttributeError) as problem:
        # The constructors of dates and numbers raise ValueError for what merely looks like one.
        first = str(problem).splitlines()[0] if str(problem) else type(problem).__name__
        raise SpecError(f"{path}: not valid YAML: {first}.") from None
    _refuse_endless(data, path)
    return data


def _read(path: Path) -> str:
    try:
        if not path.is_file():
            raise SpecError(_missing(path))
        if path.stat().st_size > MAX_BYTES:
            raise SpecError(f"{path}: is {path.stat().st_size:,} bytes long; a sweep file has at most {MAX_BYTES:,}.")
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as problem:
        raise SpecError(f"{path}: isn't UTF-8 text (byte {problem.start}).") from None
    except (OSError, ValueError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) and problem.strerror else str(problem)
        raise SpecError(f"{path}: can't be read: {reason}.") from None


def _missing(path: Path) -> str:
    if path.is_dir():
        here = sorted(file.name for file in path.glob("*.y*ml"))
        return f"{path}: is a folder; name a file in it" + (f": {', '.join(here[:10])}." if here else ".")
    if path.exists():
        return f"{path}: isn't a regular file."
    folder = path.parent
    if not folder.is_dir():
        return f"{path}: no such file; the folder {folder} doesn't exist either."
    here = sorted(file.name for file in folder.iterdir() if file.suffix in {".yaml", ".yml"})
    close = difflib.get_close_matches(path.name, here, n=3, cutoff=0.5)
    if close:
        return f"{path}: no such file. Did you mean {' or '.join(str(folder / name) for name in close)}?"
    return f"{path}: no such file." + (f" That folder has {', '.join(here[:10])}." if here else "")


def _refuse_endless(data: object, path: Path) -> None:
    """Anchors can make a short file mean billions of values, or contain itself; later code walks it all."""
    stack, values = [data], 0
    while stack:
        item = stack.pop()
        values += 1
        if values > MAX_VALUES:
            raise SpecError(f"{path}: describes more than {MAX_VALUES:,} values; check its anchors and aliases.")
        if isinstance(item, Mapping):
            stack.extend(item.values())
        elif isinstance(item, list | tuple | set):
            stack.extend(item)
