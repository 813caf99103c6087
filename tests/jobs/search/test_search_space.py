"""What the space proposes is a policy; what a file says against it is refused."""

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.search.rivals import EXAMPLES, RIVALS, fitted_knob, open_entries
from jobs.search.space import CHOICES, narrowed, propose
from tiercache.catalog import PRESETS, SIGNALS
from tiercache.errors import PolicyError, SpecError
from tiercache.policy import KNOBS, Policy, parse_policy


def filled(entry: Any, knob: str, share: float) -> dict[str, Any]:
    rest = {"packed": round(1 - share, 3)} if entry.get("packed") == "rest" else {}
    return {**entry, **rest, knob: {"bytes": share} if knob == "budget" else share}


@settings(max_examples=400, deadline=None)
@given(st.randoms(use_true_random=False), st.booleans(), st.integers(1, 999))
def test_every_proposal_is_a_policy(rng: random.Random, host_counts: bool, size: int) -> None:
    proposal = propose(lambda _, values: rng.choice(values), CHOICES, host_counts)
    room = 1.0 if proposal.entry.get("packed") == "rest" else 1.0 - float(proposal.entry.get("packed", 0.0))
    share = size / 1000 if proposal.fit == "budget" else round(size / 1000 * room, 3)
    policy = parse_policy(filled(proposal.entry, proposal.fit, share))
    if host_counts and proposal.fit == "hbm":
        assert policy.placement.hbm + policy.placement.packed == pytest.approx(1)  # nothing lies on the host
    assert policy.acts or share == 1


def test_all_of_the_space_is_reached() -> None:
    rng, seen = random.Random(0), dict[str, set[Any]]()

    def draw(knob: str, values: Any) -> Any:
        chosen = rng.choice(values)
        seen.setdefault(knob, set()).add(chosen)
        return chosen

    policies = list[Policy]()
    for host_counts in [True, False] * 400:
        proposal = propose(draw, CHOICES, host_counts)
        policies.append(parse_policy(filled(proposal.entry, proposal.fit, 0.0 if proposal.fit == "hbm" else 0.5)))
    assert {knob: set(values) for knob, values in CHOICES.items()} == seen
    assert {policy.scorer.scorer for policy in policies} == set(CHOICES["scorer"])
    assert len({repr(policy.config()) for policy in policies}) > 500
    assert set(CHOICES) - set(KNOBS) == {"kind"}
    assert set(SIGNALS) - set(CHOICES["scorer"]) == {"thinkv"}


@pytest.mark.parametrize(
    ("own", "word"),
    [
        ({"scorr": ["random"]}, "scorer"),
        ({"scorer": ["thinkv"]}, "space.scorer"),
        ({"scorer": []}, "empty"),
        ({"packed_bits": [3]}, "packed_bits"),
        ({"every": [-1]}, "every"),
        ({"evict": [2.0]}, "evict"),
        ({"evict": ["much"]}, "evict"),
        ({"recent": [0]}, "recent"),
        ({"kind": ["levels"]}, "kind"),
        ({"window": [[8]]}, "window"),
        ({"pin_prompt": ["yes"]}, "pin_prompt"),
    ],
)
def test_a_wrong_value_is_refused(own: dict[str, Any], word: str) -> None:
    with pytest.raises(SpecError, match=word):
        narrowed(own)


def test_a_file_may_have_other_values() -> None:
    choices = narrowed({"every": [64, 128], "recent": [128], "group": [None, 32]})
    assert (choices["every"], choices["recent"], choices["group"]) == ((64, 128), (128,), (None, 32))
    assert choices["scorer"] == CHOICES["scorer"]


def test_the_presets_to_beat_are_all_that_a_budget_can_fit() -> None:
    entries = open_entries(RIVALS)
    names = {entry["name"] for entry in entries}
    cut_the_prompt_alone = {"snapkv", "adakv", "pyramidkv", "defensivekv", "layer_defensivekv"}
    assert set(PRESETS) - names == {"full", "quest"} | cut_the_prompt_alone
    assert all(fitted_knob(entry) in EXAMPLES for entry in entries)


@pytest.mark.parametrize(
    ("entry", "error"),
    [
        ({"name": "h2o", "sinks": "fit", "budget": 0.5}, SpecError),
        ({"name": "h2o", "budget": "fit", "recent": "fit"}, SpecError),
        ({"name": "hierarchy", "hbm": 0.5, "packed": "rest", "evict": 0}, SpecError),
        ({"name": "h2o", "budget": []}, SpecError),
        ({"name": "h20", "budget": "fit"}, PolicyError),
        ({"name": "h2o", "buget": "fit"}, SpecError),
        ({"name": "h2o"}, PolicyError),
    ],
)
def test_a_wrong_rival_is_refused(entry: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match=r"rivals\[0\]"):
        open_entries([entry])
