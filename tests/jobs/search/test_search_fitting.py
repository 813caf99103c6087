"""Planned bytes are the engine's, and a fitted knob is the largest that fits."""

from typing import Any

import pytest

from jobs.search.fitting import MARGIN, Fitted, Planner, TooLarge, fill, held, metadata_token_bytes, planned
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
    plan = planned(policy, len(prompt), len(done.tokens) - 1, SHAPE.sizes(policy, "float32"), metadata)
    if entry["name"] == "thinkv":  # its kinds of thought are known to the engine alone; a plan takes the longest kept
        assert held(plan, True) >= held(done.ledger, True)
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
    plan = planned(policy, 40, 50, SHAPE.sizes(policy, "float32"), 0)
    assert held(plan, True) - held(plan, False) == pytest.approx(plan.ddr_bytes_mean)
    assert plan.ddr_bytes_mean > 0


def test_a_group_that_does_not_divide_the_head_is_no_policy() -> None:
    assert SHAPE is not None
    planner = Planner(SHAPE, "float32", LENGTHS, True)
    with pytest.raises(PolicyError, match="group"):
        planner.fit({"name": "quantised", "packed_bits": 4, "group": 7}, "recent", 0.5)
