"""Policies are data: what is written resolves, and what is impossible is refused with a way out."""

import subprocess
import sys

import pytest

from tiercache.errors import PolicyError
from tiercache.policy import KNOBS, PRESETS, parse_policy

GOOD = {"budget": 0.5, "hbm": 0.5, "evict": 0.03, "packed_bits": 4, "chunk_keep": 0.5, "read_budget": 256}


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_resolves_and_round_trips_through_its_configuration(name: str) -> None:
    entry = {"name": name, **{knob: GOOD[knob] for knob in PRESETS[name].required}}
    policy = parse_policy(entry)
    assert policy.label.split()[0] == name
    assert parse_policy(entry) == policy
    assert {knob for part in policy.config().values() if isinstance(part, dict) for knob in part} == {
        *KNOBS,
        *type(policy.scorer).model_fields,
    }


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("fulll", "unknown policy 'fulll'. Did you mean 'full'?"),
        ({"name": "h2o"}, "budget: 'h2o' needs it"),
        ({"name": "h2o", "budgte": 0.5}, "budgte: unknown key. Did you mean 'budget'?"),
        ({"name": "h2o", "budget": 1.5}, "less than or equal to 1 (got 1.5)"),
        ({"name": "h2o", "budget": 0}, "greater than or equal to 1 (got 0)"),
        ({"name": "h2o", "budget": 0.0}, "greater than 0 (got 0.0)"),
        ({"name": "h2o", "budget": True}, "number of tokens (512), a ratio (0.5)"),
        ({"name": "h2o", "budget": {"tokens": 5, "ratio": 0.5}}, "give one of tokens"),
        ({"name": "h2o", "budget": {"tokns": 5}}, "tokns: unknown key"),
        ({"name": "streaming", "budget": 3}, "below the protected 5 (sinks 4"),
        ({"name": "h2o", "budget": 40, "recent": 41}, "below the protected 41"),
        ({"name": "full", "budget": 0.5}, "takes no parameters"),
        ({"name": "hierarchy", "hbm": 1.5, "evict": 0.1}, "hbm: input should be less than or equal to 1 (got 1.5)"),
        ({"name": "hierarchy", "hbm": 0.8, "evict": 0, "packed": 0.5}, "exceed 1"),
        ({"name": "hierarchy", "hbm": 0.8, "evict": 0.1, "budget": 0.5}, "give one of them"),
        (
            {"name": "hierarchy", "hbm": 0.8, "evict": 0.1, "every": 0},
            "evict: needs events; give every: 1 or more",
        ),
        ({"name": "random", "budget": 0.5, "scope": "lyer"}, "scope: input should be 'head', 'layer' or 'token'"),
        ({"name": "hierarchy", "hbm": 0.5, "evict": 0, "positions": "cache"}, "needs hbm: 1 without quantised tokens"),
        ({"name": "expected_attention", "budget": 0.5, "positions": "drifted"}, "true positions only"),
        ({"name": "h2o", "budget": 0.5, "share": "layer", "positions": "cache"}, "heads that keep alike"),
        ({"name": "h2o", "budget": 0.5, "floor": 0.2}, "floor is what a head keeps of a shared budget"),
        ({"name": "h2o", "budget": 0.5, "chunk": 64}, "give one of them"),
        ({"name": "h2o", "budget": 0.5, "packed_bytes": 0.5, "hbm": 0.1}, "packed_bytes divides a budget"),
        ({"name": "h2o", "budget": 0.5, "scorer": "attn"}, "unknown scorer 'attn'"),
        ({"name": "h2o", "budget": 0.5, "scorer": "nowhere.py:X"}, "can't read 'nowhere.py'"),
        ({"name": "random", "budget": float("nan")}, "finite number"),
        ({"budget": 0.5}, "name: is required"),
        ({"name": 7}, "name: is required"),
    ],
)
def test_impossible_policies_name_field_value_and_what_is_allowed(entry: object, words: str) -> None:
    with pytest.raises(PolicyError) as caught:
        parse_policy(entry, "policies[3]")  # type: ignore[arg-type]
    assert words in str(caught.value)
    assert str(caught.value).startswith("policies[3]")


def test_labels_say_what_differs_from_the_preset() -> None:
    assert parse_policy({"name": "h2o", "budget": 0.5, "recent_share": 0.5}).label == "h2o budget=0.5"
    assert (
        parse_policy({"name": "h2o", "budget": {"tokens": 64}, "pin_prompt": True}).label == "h2o budget=64 pin_prompt"
    )
    shown = parse_policy({"name": "hierarchy", "hbm": 0.3, "evict": 0, "every": 16, "compound": False}).label
    assert set(shown.split()) == {"hierarchy", "hbm=0.3", "evict=0", "every=16", "compound=False"}


def test_true_positions_may_be_written_without_quotes() -> None:
    plain = {"name": "streaming", "budget": 64, "positions": True}
    assert parse_policy(plain).storage.positions == "true"
    assert parse_policy(plain).label == "streaming budget=64 positions=true"
    assert parse_policy(plain).config() == parse_policy({**plain, "positions": "true"}).config()


def test_reading_a_policy_needs_no_torch() -> None:
    code = "import sys, tiercache.policy, tiercache.placement, tiercache.model_spec; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (
            {"name": "h2o", "budget": 0.5, "packed_bits": 2},
            "packed_bits: has no effect here; give one of packed, packed_by",
        ),
        ({"name": "h2o", "budget": 0.5, "t1_read": "stream"}, "t1_read: has no effect here"),
        ({"name": "h2o", "budget": 0.5, "chunk_keep": 0.1}, "chunk_keep: has no effect here; give one of chunk"),
        ({"name": "h2o", "budget": 0.5, "compound": False}, "compound: has no effect here; give one of evict"),
        ({"name": "h2o", "budget": 0.5, "share_pages": True}, "share_pages: has no effect here; give one of pages"),
        (
            {"name": "thinkv", "budget": 64, "recent": 50},
            "recent: has no effect with segment: thoughts shrink as they end",
        ),
        ({"name": "lagkv", "chunk_keep": 0.5, "every": 50}, "every: has no effect with chunk"),
        (
            {"name": "quest", "read_budget": 64, "scorer": "keydiff"},
            "scorer: has no effect with pages: .* nothing is ever",
        ),
        ({"name": "quest", "read_budget": {"bytes": 0.3}}, "read_budget is of tokens"),
        ({"name": "thinkv", "budget": 64, "ladder": [4, 8]}, "ladder: sizes fall from step to step"),
        ({"name": "thinkv", "budget": 64, "ladder": []}, "ladder: value should have at least 1 item"),
        (
            {"name": "thinkv", "budget": 64, "ladder": 16},
            r"ladder: is a list of falling sizes; in a sweep file.*\[\[16, 8, 4\]\]",
        ),
        (
            {"name": "thinkv", "budget": 64, "execution_below": 0.9, "transition_above": 0.1},
            "execution_below 0.9 is above transition_above 0.1",
        ),
        ({"name": "epikv", "budget": 0.5, "band_a": 2, "band_b": "2"}, "band_a and band_b are the same layers"),
        ({"name": "hierarchy", "hbm": "0.5", "evict": 0}, r"hbm: is a number \(got '0.5'\)"),
        ({"name": "hierarchy", "hbm": False, "evict": 0}, r"hbm: is a number \(got False\)"),
        ({"name": "h2o", "budget": 0.5, "pin_prompt": "off"}, r"pin_prompt: is true or false \(got 'off'\)"),
        ({"name": "h2o", "budget": "50%"}, r"budget: is a number of tokens .* \{bytes: 0.2\} \(got '50%'\)"),
        (
            {"name": "h2o", "budget": {"byte": 0.2}},
            "byte: unknown key. Did you mean 'bytes'. Allowed keys: bytes, ratio, tok",
        ),
    ],
)
def test_what_has_no_effect_or_contradicts_itself_is_refused(entry: dict[str, object], words: str) -> None:
    with pytest.raises(PolicyError, match=words):
        parse_policy(entry)


@pytest.mark.parametrize("entry", [None, ["h2o"], 3])
def test_a_policy_is_a_name_or_a_mapping(entry: object) -> None:
    with pytest.raises(PolicyError, match="policy: is a preset's name or a mapping"):
        parse_policy(entry)  # type: ignore[arg-type]
