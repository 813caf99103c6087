"""The engine on the C kernel, in float32: the same tokens as on torch's own, and as each row alone."""

import copy
import shutil
from functools import cache

import pytest
import torch
from tiny import POLICIES, assert_alone_as_together, generate, prompts, requests, tiny

from tiercache.kernels import native
from tiercache.model import LoadedModel, wrap

pytestmark = pytest.mark.skipif(
    not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="no C compiler: torch's kernels are used"
)
BATCH = requests(prompts(40, 33, 5, 17), new=40)


@cache
def narrow() -> LoadedModel:
    return wrap(copy.deepcopy(tiny("llama")).float(), None, torch.device("cpu"))


@pytest.mark.parametrize("name", POLICIES)
def test_the_same_tokens_on_torchs_kernels(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = generate(narrow(), BATCH, POLICIES[name], max_batch=3)
    monkeypatch.setattr(native, "kernel", lambda: None)
    torchs = generate(narrow(), BATCH, POLICIES[name], max_batch=3)
    assert [c.tokens for c in ours] == [c.tokens for c in torchs]


@pytest.mark.parametrize("name", POLICIES)
def test_a_row_alone_is_the_same_row(name: str) -> None:
    assert native.kernel() is not None
    assert_alone_as_together(narrow(), BATCH, POLICIES[name])
