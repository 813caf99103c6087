"""A sweep file is either understood completely or refused with a message that can be acted on."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jobs.spec import load_sweep, parse_bytes, parse_sweep
from tiercache.errors import BenchmarkError, ModelError, PolicyError, SpecError, TierCacheError

ROOT = Path(__file__).parents[2]
HEAD = "name: t\nmodels: [reasoner]\nbenchmarks: [chain]\n"
Write = Callable[[str], Path]


@pytest.mark.parametrize("path", sorted((ROOT / "sweeps").glob("*.yaml")), ids=lambda path: path.name)
def test_shipped_sweeps_are_valid(path: Path) -> None:
    assert load_sweep(path).resolved_policies()


def test_bare_names_stand_for_mappings(write: Write) -> None:
    sweep = load_sweep(write(HEAD + "policies: [full]\n"))
    assert sweep.models == [{"id": "reasoner"}]
    assert sweep.benchmarks == [{"name": "chain"}]
    assert sweep.policies == [{"name": "full"}]
    assert (sweep.repeats, sweep.engine.max_batch, sweep.cluster.max_attempts) == (1, 64, 3)


def test_lists_expand_into_the_grid_in_order(write: Write) -> None:
    sweep = load_sweep(write(HEAD + "policies: [{name: hierarchy, hbm: [0.3, 0.5], evict: [0, 0.03]}]\n"))
    points = [(policy.placement.hbm, policy.placement.evict) for policy in sweep.resolved_policies()]
    assert points == [(0.3, 0.0), (0.3, 0.03), (0.5, 0.0), (0.5, 0.03)]


def test_two_spellings_of_one_policy_are_one(write: Write) -> None:
    text = HEAD + "policies: [full, full, {name: h2o, budget: 0.5}, {name: h2o, budget: {ratio: 0.5}, sinks: 0}]\n"
    assert [policy.name for policy in load_sweep(write(text)).resolved_policies()] == ["full", "h2o"]


WRONG = [
    ("policies: [{name: h2o, buget: 512}]", PolicyError, ["policies[0].buget", "Did you mean 'budget'?"]),
    ("policies: [{name: h20, budget: 512}]", PolicyError, ["policies[0].name", "'h20'", "Did you mean 'h2o'?"]),
    ("policies: [full, {name: h2o, budget: 1.5}]", PolicyError, ["policies[1].budget", "1.5"]),
    ("policies: [{name: h2o, budget: 0.0}]", PolicyError, ["policies[0].budget", "0.0"]),
    ("policies: [{name: h2o, budget: 0}]", PolicyError, ["policies[0].budget"]),
    ("policies: [{name: h2o, budget: [64, 0]}]", PolicyError, ["policies[0].budget"]),
    ("policies: [{name: streaming, budget: 100, recent: 128}]", PolicyError, ["policies[0]", "100", "132"]),
    ("policies: [{name: h2o, budget: []}]", SpecError, ["policies[0].budget", "empty"]),
    ("policies: []", SpecError, ["policies", "at least 1"]),
    ("policies: [3]", SpecError, ["policies[0]", "name or a mapping"]),
    ("policies: full", SpecError, ["policies", "list"]),
    ("policies: [{budget: 0.5}]", PolicyError, ["policies[0].name", "required"]),
    ("policies: [full]\nrepeats: 0", SpecError, ["repeats", "got 0"]),
    ("policies: [full]\nrepeats: true", SpecError, ["repeats", "got True"]),
    ("policies: [full]\nrepeat: 2", SpecError, ["repeat: unknown key", "'repeats'"]),
    ("policies: [full]\nengine: {hbm_kv_budget: 3 parsecs}", SpecError, ["engine.hbm_kv_budget", "256MiB"]),
    ("policies: [full]\nengine: {max_batc: 3}", SpecError, ["engine.max_batc", "'max_batch'"]),
    ("policies: [full]\nengine: {device: gpu}", SpecError, ["engine.device", "'cuda'"]),
    ("policies: [full]\nsampling: {temperature: .nan}", SpecError, ["sampling.temperature"]),
    ("policies: [full]\nsampling: {top_p: 0}", SpecError, ["sampling.top_p", "greater than 0"]),
    ("policies: [full]\nseed: -1", SpecError, ["seed"]),
    ("policies: [full]\nname: again", SpecError, ["'name' is given twice", "line 5"]),
    ("policies: [{name: h2o, budget: 0.5, budget: 0.6}]", SpecError, ["'budget' is given twice"]),
    ("policies: [{name: h2o, budget: {tokens: 3, ratio: 0.5}}]", PolicyError, ["give one of tokens"]),
    ("policies: [{1: 2}]", SpecError, ["policies[0]", "text"]),
    ("policies: [full", SpecError, ["not valid YAML", "line 5"]),
    ("policies: [full]\nseed: 2024-13-45", SpecError, ["not valid YAML"]),
    ("policies: [full]\nseed: 1" + "0" * 5000, SpecError, ["not valid YAML"]),
    ("policies: &a [*a]", SpecError, ["anchors"]),
]


@pytest.mark.parametrize(("text", "error", "words"), WRONG, ids=[text[:40] for text, _, _ in WRONG])
def test_errors_name_file_field_value_and_remedy(
    write: Write, text: str, error: type[TierCacheError], words: list[str]
) -> None:
    path = write(HEAD + text + "\n")
    with pytest.raises(error) as caught:
        load_sweep(path)
    assert str(caught.value).startswith(f"{path}:")
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_several_wrong_fields_are_told_at_once(write: Write) -> None:
    with pytest.raises(SpecError) as caught:
        load_sweep(write(HEAD + "policies: [full]\nrepeats: 0\nengine: {max_batch: 0}\n"))
    assert len(str(caught.value).splitlines()) == 2


@pytest.mark.parametrize(
    ("entry", "error", "words"),
    [
        ("benchmarks: [gsm9k]", BenchmarkError, ["benchmarks[0].name", "'gsm8k'"]),
        ("benchmarks: [{name: chain, n: 0}]", BenchmarkError, ["benchmarks[0].n"]),
        ("benchmarks: [{name: chain, entires: 4}]", BenchmarkError, ["benchmarks[0].entires", "'entries'"]),
        ("benchmarks: [{name: chain, entries: [40, 20]}]", BenchmarkError, ["entries [40, 20]"]),
        ("benchmarks: [{name: chain, entries: 60, leaves: 10}]", BenchmarkError, ["70", "at most 64"]),
        ("models: [{id: reasoner, dtyp: float32}]", ModelError, ["models[0].dtyp", "'dtype'"]),
        ("models: [{id: x, gguf: y.bin}]", ModelError, ["models[0]", "y.bin"]),
        ("models: []", SpecError, ["models"]),
    ],
)
def test_models_and_benchmarks_are_checked_too(
    write: Write, entry: str, error: type[TierCacheError], words: list[str]
) -> None:
    given_key = entry.split(":")[0]
    lines = [line for line in (HEAD + "policies: [full]").splitlines() if not line.startswith(given_key)]
    with pytest.raises(error) as caught:
        load_sweep(write("\n".join([*lines, entry])))
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_missing_file_names_similar_ones(tmp_path: Path) -> None:
    (tmp_path / "demo.yaml").write_text("")
    with pytest.raises(SpecError, match=r"demp\.yaml: no such file\. Did you mean .*demo\.yaml"):
        load_sweep(tmp_path / "demp.yaml")
    with pytest.raises(SpecError, match="folder"):
        load_sweep(tmp_path / "nowhere" / "demo.yaml")
    with pytest.raises(SpecError, match=r"is a folder.*demo\.yaml"):
        load_sweep(tmp_path)
    with pytest.raises(SpecError, match="empty file"):
        load_sweep(tmp_path / "demo.yaml")


def test_a_bomb_of_anchors_is_refused_quickly(write: Write) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    with pytest.raises(SpecError, match="anchors"):
        load_sweep(write("\n".join(lines)))
    with pytest.raises(SpecError, match=r"nested too deeply|not valid YAML"):
        load_sweep(write("[" * 5000))


def test_too_large_a_grid_is_refused(write: Write) -> None:
    many = ", ".join(str(i) for i in range(1, 200))
    with pytest.raises(SpecError, match=r"39,601 policies"):
        load_sweep(write(HEAD + f"policies: [{{name: h2o, budget: [{many}], every: [{many}]}}]"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [("256MiB", 268_435_456), ("1.5GB", 1_500_000_000), ("10 kib", 10_240), ("7", 7), (5, 5), (None, None)],
)
def test_sizes(text: object, expected: int | None) -> None:
    assert parse_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "1e3", "12 parsecs", True, 1.5, ["1"]])
def test_sizes_that_are_none(text: object) -> None:
    with pytest.raises(ValueError, match="256MiB"):
        parse_bytes(text)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_no_file_gives_anything_but_our_own_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "any.yaml"
    path.write_bytes(content)
    with pytest.raises(TierCacheError):
        load_sweep(path)


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
PLAIN = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8) | st.integers(), inner, max_size=3),
    max_leaves=6,
)
FIELDS = ["name", "models", "benchmarks", "policies", "repeats", "seed", "sampling", "engine", "cluster", "database"]
INNER = {
    "policies": ["name", "budget", "evict", "hbm", "packed", "sinks", "recent", "pin_prompt", "scorer", "every"],
    "benchmarks": ["name", "n", "difficulty", "seed", "entries", "leaves", "data"],
    "models": ["id", "revision", "gguf", "dtype"],
}


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_no_value_gives_anything_but_our_own_error(data: st.DataObject) -> None:
    sweep: dict[str, Any] = {
        "name": "t",
        "models": [{"id": "reasoner"}],
        "benchmarks": [{"name": "chain"}],
        "policies": [{"name": "hierarchy", "hbm": 0.5, "evict": 0.0}],
    }
    field = data.draw(st.sampled_from(FIELDS))
    value = data.draw(PLAIN)
    if field in INNER and data.draw(st.booleans()):
        sweep[field][0][data.draw(st.sampled_from(INNER[field]))] = value
    else:
        sweep[field] = value
    with contextlib.suppress(TierCacheError):
        parse_sweep(sweep)
