"""The engine on the C kernel, in float32: the same tokens as on torch's own, and as each row alone."""

import copy
import shutil
from functools import cache

import pytest
import torch
from tiny import POLICIES, assert_alone_as_together, generate, prompts, requests, tiny

from tiercache.engine import Engine, Limits
from tiercache.kernels import native
from tiercache.model import LoadedModel, wrap
from tiercache.policy import parse_policy
from tiercache.requests import Request

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


def states(batch: list[Request], policy: object, rows: int) -> dict[str, torch.Tensor]:
    """Each sequence's last hidden states, step by step."""
    found: dict[str, list[torch.Tensor]] = {}

    def probe(cache, first, keys, hidden) -> None:  # type: ignore[no-untyped-def]
        for key, row in zip(keys, hidden, strict=True):
            found.setdefault(key, []).append(row.clone())

    engine = Engine(narrow(), Limits(max_batch=rows, prefill_chunk=16))
    list(engine.run(batch, parse_policy(policy), probe))  # type: ignore[arg-type]
    return {key: torch.stack(rows) for key, rows in found.items()}


OTHERS = {  # scorers that look at queries, keys, hidden states or attention in other ways, and quantised tiers
    "snapkv_d": {"name": "snapkv_d", "budget": 0.5, "every": 8, "queries": 4, "recent": 4},
    "tova": {"name": "tova", "budget": 24},
    "rkv": {"name": "rkv", "budget": 24, "every": 8, "recent": 4, "queries": 4},
    "raas": {"name": "raas", "budget": 24},
    "lagkv": {"name": "lagkv", "chunk": 8, "chunk_keep": 0.5},
    "keydiff": {"name": "keydiff", "budget": 24, "every": 8},
    "epikv": {"name": "epikv", "budget": 0.5},
    "epikv-band": {"name": "epikv", "budget": 0.5, "signal": "band"},
    "adakv": {"name": "adakv", "budget": 0.5, "every": 4},
    "qevict": {"name": "qevict", "budget": {"bytes": 0.5}, "window": 2, "every": 4},
    "quest": {"name": "quest", "pages": 4, "read_budget": 12, "dense_layers": 0},
}


@pytest.mark.parametrize("name", [*POLICIES, *OTHERS])
def test_a_row_has_the_same_bits_in_any_batch(name: str) -> None:
    policy = {**POLICIES, **OTHERS}[name]
    together, alone = states(BATCH, policy, 3), states(BATCH, policy, 1)
    assert together.keys() == alone.keys() == {request.key for request in BATCH}
    for key, hidden in together.items():
        assert torch.equal(hidden, alone[key]), (hidden - alone[key]).abs().amax(1)
