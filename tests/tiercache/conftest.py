"""Fixtures over the tiny models of `tiny.py`."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # helper modules beside the tests

import tiny
import torch

from tiercache.policy import Policy, parse_policy

torch.set_num_threads(1)  # tiny tensors: a second thread costs more than it does


@pytest.fixture(params=tiny.FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=list(tiny.POLICIES))
def policy(request: pytest.FixtureRequest) -> Policy:
    return parse_policy(tiny.POLICIES[request.param])
