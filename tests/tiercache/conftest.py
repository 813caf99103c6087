"""Fixtures over the tiny models of `tiny.py`."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # helper modules beside the tests

import tiny

from tiercache.policy import Policy, parse_policy


@pytest.fixture(params=tiny.FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=list(tiny.POLICIES))
def policy(request: pytest.FixtureRequest) -> Policy:
    return parse_policy(tiny.POLICIES[request.param])
