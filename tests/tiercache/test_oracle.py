"""The engine against a slow reference that masks instead of moving."""

import oracle
import pytest
from tiny import POLICIES, generate, loaded, prompts, requests, tiny

from tiercache.policy import parse_policy

EXACT = [name for name in POLICIES if name != "hierarchy-packed"]  # 8-bit storage is approximate by design


@pytest.mark.parametrize("name", EXACT)
def test_same_tokens_and_same_survivors_as_the_slow_reference(name: str) -> None:
    policy = parse_policy(POLICIES[name])
    for request in requests(prompts(21, 5), new=32):
        expected, state = oracle.generate(tiny("llama"), policy, request.prompt, 32, request.seed)
        got = generate(loaded("llama"), [request], policy)[0]
        assert list(got.tokens) == expected
        live = [len(tokens) for tokens in state.live.values()]
        assert sum(live) == len(live) * (got.ledger.hbm_tokens + got.ledger.ddr_tokens)
        assert sum(map(len, state.dead.values())) == len(live) * got.ledger.evicted_tokens
        if not policy.placement.ragged:
            assert len(set(live)) == 1


@pytest.mark.parametrize("name", ["h2o-ratio", "random-head", "hierarchy", "streaming-tokens"])
def test_every_family_agrees_with_the_slow_reference(family: str, name: str) -> None:
    policy = parse_policy(POLICIES[name])
    request = requests(prompts(19), new=24)[0]
    expected, _ = oracle.generate(tiny(family), policy, request.prompt, 24, request.seed)
    assert list(generate(loaded(family), [request], policy)[0].tokens) == expected
