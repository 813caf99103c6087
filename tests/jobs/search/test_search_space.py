"""What the space proposes is a policy; what a file says against it is refused."""

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.search.fitting import fill
from jobs.search.rivals import EXAMPLES, RIVALS, fitted_knob, open_entries
from jobs.search.space import CHOICES, Proposal, narrowed, propose
from tiercache.catalog import PRESETS, SIGNALS
from tiercache.errors import PolicyError, SpecError
from tiercache.policy import KNOBS, Policy, parse_policy


def filled(proposal: Proposal, size: float) -> dict[str, Any]:
    """Its fitted knob at a share of its range: for tiers, evicting below a half."""
    if proposal.fit == "budget":
        return fill(proposal.entry, "budget", max(1, round(1000 * size)))
    least, packed = float(proposal.entry["hbm"]), proposal.entry["packed"]
    most = 1.0 if packed == "rest" else 1.0 - packed
    hbm = least if size < 0.5 else least + (most - least) * (2 * size - 1)
    entry = fill({**proposal.entry, "evict": 0.0}, "hbm", round(1000 * hbm))
    return fill(entry, "evict", round(2000 * size)) if size < 0.5 else entry


@settings(max_examples=400, deadline=None)
@given(st.randoms(use_true_random=False), st.booleans(), st.integers(1, 999))
def test_every_proposal_is_a_policy(rng: random.Random, host_counts: bool, size: int) -> None:
    proposal = propose(lambda _, values: rng.choice(values), CHOICES, host_counts)
    policy = parse_policy(filled(proposal, size / 1000))
    if host_counts and proposal.fit == "tiers":
        assert policy.placement.hbm + policy.placement.packed == pytest.approx(1)  # nothing lies on the host


def test_all_of_the_space_is_reached() -> None:
    rng, seen = random.Random(0), dict[str, set[Any]]()

    def draw(knob: str, values: Any) -> Any:
        chosen = rng.choice(values)
        seen.setdefault(knob, set()).add(chosen)
        return chosen

    policies = list[Policy]()
    for host_counts in [True, False] * 400:
        proposal = propose(draw, CHOICES, host_counts)
        policies.append(parse_policy(filled(proposal, 0.4)))
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
        ({"hbm": [2.0]}, "hbm"),
        ({"hbm": ["much"]}, "hbm"),
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
