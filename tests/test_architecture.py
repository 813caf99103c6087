"""Imports point one way, what must start fast imports no torch, and every file stays one idea long."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAY_IMPORT: dict[str, set[str]] = {
    "tiercache": {"reasoner"},  # only where the embedded weights lie
    "cluster": {"tiercache"},
    "jobs": {"cluster", "db", "tiercache", "reasoner"},
    "db": set(),
    "dashboard": {"db"},
    "reasoner": set(),
}
# The console command starts the dashboard's process, and knows no more of it than the command line.
EXCEPTIONS = {("jobs/cli.py", "dashboard.launch")}
# The HTML report has the dashboard's charts; `test_static_report` sees to it that no Streamlit comes with them.
EXCEPTIONS |= {("jobs/commands/exporting.py", "dashboard.static_report")}
# The capacity page is arithmetic over policies and shapes; `test_what_must_start_fast_imports_no_torch` watches it.
EXCEPTIONS |= {
    (f"dashboard/capacity_{part}.py", f"tiercache.{module}")
    for part in ("page", "figures")
    for module in ("capacity", "catalog", "errors", "gpus", "policy", "shapes")
}
# Pages that show what is computed from the database alone, elsewhere and for the command line too.
EXCEPTIONS |= {
    *(
        (f"dashboard/{file}.py", f"jobs.{part}")
        for file in ("papers_page", "paper_results", "blocks_view")
        for part in ("papers", "compare")
    ),
    *(
        (f"dashboard/advice_{part}.py", module)
        for part in ("page", "figures")
        for module in ("jobs.advice", "jobs.capacity", "tiercache.errors", "tiercache.shapes")
    ),
    ("dashboard/measures.py", "tiercache.diagnostics.values"),
    ("dashboard/sweep_views.py", "jobs.failures"),
}
MAX_LINES = 320
FOLDERS = (*MAY_IMPORT, "tests", "benchmarks")
SOURCES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imports(path: Path) -> Iterator[str]:
    """Modules that a file imports, wherever in it; relative imports are the package's own and left out."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield str(node.module)
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_imports_point_one_way(package: str) -> None:
    allowed = MAY_IMPORT[package] | {package}
    wrong = {
        (name(path), module)
        for path in SOURCES
        if path.is_relative_to(ROOT / package)
        for module in imports(path)
        if module.split(".")[0] in MAY_IMPORT.keys() - allowed
        and not any(name(path) == file and module.startswith(part) for file, part in EXCEPTIONS)
    }
    assert not wrong


def test_tiercache_takes_nothing_but_a_path_from_the_reasoner() -> None:
    found = {
        module
        for path in SOURCES
        if path.is_relative_to(ROOT / "tiercache")
        for module in imports(path)
        if module.split(".")[0] == "reasoner"
    }
    assert found <= {"reasoner", "reasoner.WEIGHTS"}


def test_one_module_touches_the_internals_of_transformers() -> None:
    users = {
        name(path)
        for path in SOURCES
        if path.parts[len(ROOT.parts)] in MAY_IMPORT
        for m in imports(path)
        if m.split(".")[0] == "transformers" and m.count(".") > 1
    }
    assert users <= {"tiercache/hf.py"}


LIGHT = [
    "jobs.spec",
    "jobs.grid",
    "jobs.plan",
    "jobs.report",
    "jobs.coordinator",
    "jobs.benchmarks.gsm8k",
    "tiercache.policy",
    "tiercache.placement",
    "tiercache.shapes",
    "reasoner",
    "db",
    *(f"dashboard.{path.stem}" for path in sorted((ROOT / "dashboard").glob("[a-z]*.py")) if path.stem != "app"),
]


def test_what_must_start_fast_imports_no_torch() -> None:
    """One process for all: whichever it is that imports torch is named."""
    code = (
        "import importlib, sys\n"
        f"for module in {LIGHT}:\n"
        "    importlib.import_module(module)\n"
        "    if 'torch' in sys.modules: sys.exit(module)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_a_file_is_one_idea(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MAX_LINES
