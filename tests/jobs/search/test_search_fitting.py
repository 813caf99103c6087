"""Planned bytes are the engine's, and a fitted knob is the largest that fits."""

from typing import Any

import pytest

from jobs.search.fitting import MARGIN, Fitted, Planner, TooLarge, fill, mean_bytes, metadata_token_bytes, planned
from tiercache.errors import PolicyError
from tiercache.model_spec import ModelSpec
from tiercache.policy import parse_policy
from tiercache.shapes import shape_of

SHAPE = shape_of(ModelSpec(id="reasoner"))
LENGTHS = [(40 + 3 * i, 50 + 7 * (i % 5)) for i in range(20)]
ENTRIES: list[dict[str, Any]] = [
    {"name": "full"},
    {"name": "h2o", "budget": {"bytes": 0.4}},
    {"name": "streaming", "budget": {"bytes": 0.3}},
    {"name": "qevict", "budget": {"bytes": 0.4}},
    {"name": "quantised", "packed_bits": 4, "group": 16},
    {"name": "hierarchy", "hbm": 0.3, "packed": 0.4, "evict": 0.1, "compound": False, "every": 8, "recent": 8},
    {"name": "layer_defensivekv_d", "budget": {"bytes": 0.5}, "every": 8, "recent": 8},
    {"name": "thinkv", "budget": {"bytes": 0.5}, "segment": 16},
]


@pytest.fixture(scope="module")
def engine() -> Any:
    from tiercache.engine import Engine, Limits
    from tiercache.model import load

    return Engine(load(ModelSpec(id="reasoner", dtype="float32")), Limits(max_batch=4))


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry["name"])
def test_a_plan_is_the_ledger_of_a_run(engine: Any, entry: dict[str, Any]) -> None:
    from reasoner.grammar import make_problem
    from tiercache.requests import Request, Sampling

    assert SHAPE is not None
    policy = parse_policy(entry)
    prompt = tuple(engine.loaded.encode(make_problem("ledger", 1, 0, (10, 10), (4, 4)).prompt)[1])
    (done,) = engine.run([Request("a", prompt, Sampling(max_new_tokens=30))], policy)
    metadata = metadata_token_bytes(policy, SHAPE, "float32")
    size = SHAPE.sizes(policy, "float32")
    plan = planned(policy, len(prompt), len(done.tokens) - 1, size, metadata)
    if entry["name"] == "thinkv":  # its kinds of thought are known to the engine alone; a plan takes the longest kept
        assert plan.packed_bytes_mean >= done.ledger.packed_bytes_mean
    else:
        assert plan == done.ledger


@pytest.mark.parametrize(
    ("entry", "knob"),
    [
        ({"name": "h2o"}, "budget"),
        ({"name": "qevict", "ledger": False}, "budget"),
        ({"name": "quantised", "packed_bits": 2}, "recent"),
        (
            {"name": "hierarchy", "evict": 0.0, "packed": "rest", "recent": 4, "every": 8, "pin_prompt": False},
            "hbm",
        ),
        ({"name": "lagkv", "chunk": 8}, "chunk_keep"),
    ],
    ids=lambda value: value if isinstance(value, str) else value["name"],
)
@pytest.mark.parametrize("budget", [0.5, 0.8])
def test_the_largest_value_that_fits(entry: dict[str, Any], knob: str, budget: float) -> None:
    assert SHAPE is not None
    planner = Planner(SHAPE, "float32", LENGTHS, True)
    fitted = planner.fit(entry, knob, budget)
    assert isinstance(fitted, Fitted)
    assert fitted.share <= budget * (1 - MARGIN)
    value = fitted.entry[knob]["bytes"] if knob == "budget" else fitted.entry[knob]
    next_value = value + 1 if knob == "recent" else round(1000 * value) + 1
    assert planner.share(parse_policy(fill(entry, knob, next_value))) > budget * (1 - MARGIN)


def test_what_fits_at_no_value_says_how_large_it_is() -> None:
    assert SHAPE is not None
    planner = Planner(SHAPE, "float32", LENGTHS, True)
    found = planner.fit({"name": "random"}, "budget", 0.2)  # keeps the prompt
    assert isinstance(found, TooLarge)
    assert found.share > 0.2
    whole = planner.fit({"name": "full"}, None, 0.9)
    assert isinstance(whole, TooLarge)
    assert whole.share > 1  # positions count too


def test_host_memory_counts_where_it_is_asked_for() -> None:
    assert SHAPE is not None
    policy = parse_policy({"name": "hierarchy", "hbm": 0.2, "evict": 0, "every": 8, "recent": 8})
    device, everything = (Planner(SHAPE, "float32", LENGTHS, host).share(policy) for host in (False, True))
    assert device < 0.9 < 1.0 < everything


def test_metadata_are_those_of_the_tokens_held() -> None:
    """Their mean follows from the bytes of the tiers."""
    assert SHAPE is not None
    policy = parse_policy({"name": "hierarchy", "hbm": 0.2, "packed": 0.3, "evict": 0, "every": 8, "recent": 8})
    size, metadata = SHAPE.sizes(policy, "float32"), metadata_token_bytes(policy, SHAPE, "float32")
    ledger = planned(policy, 40, 50, size, metadata)
    found = mean_bytes(ledger.hbm_bytes_mean, ledger.ddr_bytes_mean, ledger.packed_bytes_mean, size, metadata)
    assert found.beside == pytest.approx(metadata * ledger.full_bytes_mean / size.token)
    assert found.counted(True) - found.counted(False) == pytest.approx(ledger.ddr_bytes_mean)
    assert 0 < found.beside < ledger.metadata_bytes_peak


TIERS = {"name": "hierarchy", "hbm": 0.05, "packed": "rest", "every": 8, "recent": 4, "pin_prompt": False}


def test_tiers_evict_only_what_they_must() -> None:
    assert SHAPE is not None
    planner = Planner(SHAPE, "float32", LENGTHS, True)
    roomy, tight = (planner.fit({**TIERS, "packed_bits": bits}, "tiers", 0.35) for bits in (2, 8))
    assert isinstance(roomy, Fitted)
    assert isinstance(tight, Fitted)
    assert roomy.entry["evict"] == 0
    assert roomy.entry["hbm"] > 0.05
    assert (tight.entry["hbm"], tight.entry["packed"]) == (0.05, 0.95)
    assert 0 < tight.entry["evict"] < 0.5
    for fitted in (roomy, tight):
        assert 0.33 < fitted.share <= 0.35 * (1 - MARGIN)
    less = {**tight.entry, "evict": round(tight.entry["evict"] - 0.01, 3)}
    assert planner.share(parse_policy(less)) > 0.35 * (1 - MARGIN)


def test_a_group_that_does_not_divide_the_head_is_no_policy() -> None:
    assert SHAPE is not None
    planner = Planner(SHAPE, "float32", LENGTHS, True)
    with pytest.raises(PolicyError, match="group"):
        planner.fit({"name": "quantised", "packed_bits": 4, "group": 7}, "recent", 0.5)
