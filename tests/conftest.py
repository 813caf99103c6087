"""How the tests are shared out where several processes run them (`pytest -n 2 --dist loadgroup`)."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
# Each starts a Ray of its own or fills the machine: they run one after the other, in one process.
WHOLE_MACHINE = (
    "chaos",
    "cluster",
    "db/test_hammer.py",
    "db/test_outage.py",
    "jobs/test_submit_cluster.py",
    "test_end_to_end.py",
)


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups in the same hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests of one file together: what a file's fixtures build is built once."""
    for item in items:
        file = item.path.relative_to(HERE)
        alone = any(file.is_relative_to(part) for part in WHOLE_MACHINE)
        browser = file.name.startswith("test_browser")  # the large store and its server are made once
        group = "whole machine" if alone else "browser" if browser else file.as_posix()
        item.add_marker(pytest.mark.xdist_group(group))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Half characters, which some tests log on purpose, can't be sent from one process to another."""
    report = yield
    report.sections = [(name, text.encode("utf-8", "replace").decode()) for name, text in report.sections]
    return report
