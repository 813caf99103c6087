"""`tiercache capacity`: policies in one line, sizes and counts, wrong input, tables and data."""

import json
from contextlib import suppress
from io import StringIO
from typing import Any

import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

from jobs.capacity import DEFAULT_POLICIES, capacities, find_shape, read_bytes, read_counts, tables
from jobs.commands.capacity import capacity as named
from tiercache.capacity import PROJECTIONS, capacity
from tiercache.errors import ModelError, PolicyError, RequestError, TierCacheError
from tiercache.gpus import Machine
from tiercache.policy import PRESETS, parse_policy
from tiercache.policy_text import policy_entry, read_policy
from tiercache.shapes import KNOWN

SEVEN = "DeepSeek-R1-Distill-Qwen-7B"
SEVENTY = "DeepSeek-R1-Distill-Llama-70B"
VALUES = {"budget": 0.25, "hbm": 0.3, "evict": 0.03, "packed_bits": 4, "read_budget": 256, "chunk_keep": 0.5}


@pytest.mark.parametrize("name", PRESETS)
def test_a_label_reads_back_as_its_policy(name: str) -> None:
    policy = parse_policy({"name": name, **{knob: VALUES[knob] for knob in PRESETS[name].required}})
    assert read_policy(policy.label) == policy


@pytest.mark.parametrize(
    "text",
    [
        "h2o budget=bytes:0.4 scope=layer",
        "thinkv budget=512 ladder=(16, 8, 4)",
        "random budget=20 scope=token pin_prompt=False",
        "streaming budget=24 positions=true",
        "streaming budget=None chunk=8 chunk_keep=0.4",
    ],
)
def test_more_labels(text: str) -> None:
    policy = read_policy(text)
    assert read_policy(policy.label) == policy


@given(st.one_of(st.text(max_size=60), st.text("h2o budget=:.015[]()1eN-,'\"", max_size=60).map("h2o ".__add__)))
@settings(max_examples=200, deadline=None)
def test_any_text_is_a_policy_or_a_policy_error(text: str) -> None:
    with suppress(PolicyError):
        assert read_policy(text).label


@pytest.mark.parametrize("text", ["h2o " * 10**5, "h2o a=" + "[" * 10**6, "x" * 10**6, "h2o budget=0.5 budget=0.6"])
def test_long_and_doubled_text_is_refused_at_once(text: str) -> None:
    with pytest.raises(PolicyError, match="policy: "):
        policy_entry(text)


@pytest.mark.parametrize(
    ("text", "size"), [("80GiB", 80 * 2**30), ("24 gb", 24 * 10**9), ("1.5MiB", 3 * 2**19), ("7B", 7)]
)
def test_sizes(text: str, size: int) -> None:
    assert read_bytes(text, "--gpu") == size


@pytest.mark.parametrize("text", ["", "80", "GiB", "-1GiB", "0GiB", "1e9GB", "9" * 5000 + "B", "٣GB"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(RequestError, match="--gpu: is a size with its unit"):
        read_bytes(text, "--gpu")


@pytest.mark.parametrize("text", ["", ",", "0", "1,,2", "-3", "1.5", "x", "9" * 5000])
def test_what_are_no_counts(text: str) -> None:
    assert read_counts("8, 1,8", "--batch") == [8, 1]
    with pytest.raises(RequestError, match="--batch: "):
        read_counts(text, "--batch")


def asked(model: str, policy: str, context: int, **how: Any) -> None:
    capacity(find_shape(model), read_policy(policy), context, **how)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"model": "DeepSeek-R1-Distil-Qwen-7B"}, ModelError, "Did you mean 'DeepSeek-R1-Distill-Qwen-7B'"),
        ({"model": ""}, ModelError, "tiercache models"),
        ({"context": 100}, RequestError, "from prompt"),
        ({"context": 2**20 + 1}, RequestError, "1,048,576"),
        ({"prompt": 0}, RequestError, "prompt"),
        ({"dtype": "int8"}, RequestError, "float16"),
        ({"t1_read": "streem"}, RequestError, "Did you mean 'stream'"),
        ({"policy": "h20 budget=0.5"}, PolicyError, "Did you mean 'h2o'"),
        ({"policy": "h2o"}, PolicyError, "budget"),
    ],
)
def test_wrong_input(change: dict[str, Any], error: type[TierCacheError], words: str) -> None:
    with pytest.raises(error, match=words):
        asked(**{"model": SEVEN, "policy": "full", "context": 2048, **change})


@pytest.mark.parametrize("name", ["hbm_gbps", "bus_gbps", "host_gbps"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_bandwidths_are_above_zero(name: str, value: float) -> None:
    with pytest.raises(RequestError, match=name):
        Machine(**{name: value})  # type: ignore[arg-type]


def command(*arguments: str) -> str:
    app = typer.Typer()
    app.command()(named)
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_the_command_prints_a_table_for_each_context() -> None:
    text = command(SEVEN, "--context", "1024,2048", "--batch", "1,4096")
    assert "1,024 tokens" in text
    assert "2,048 tokens" in text
    assert "57,344 bytes a token" in text
    assert "401,408" in text
    assert "114,688,000" in text
    assert "about 800 MB" in text
    for policy in DEFAULT_POLICIES:
        assert text.count(read_policy(policy).label.split()[-1]) >= 2
    assert "(" in next(line for line in text.splitlines() if line.strip().startswith("full")), "4,096 rows don't fit"


@pytest.mark.parametrize("width", [80, 100, 136, 140])
def test_no_number_is_cut_in_a_narrow_terminal(width: int) -> None:
    found = capacities(find_shape(SEVEN), DEFAULT_POLICIES, [4096], 512, "auto", None, Machine())
    with StringIO() as file:
        screen = Console(file=file, width=width)
        for table in tables(found, [1, 8, 64], width):
            screen.print(table)
        text = file.getvalue()
    assert "…" not in text
    assert "64 rows" in text


def test_the_command_as_data() -> None:
    data = json.loads(
        command(SEVENTY, "--context", "4096", "--batch", "8", "--policy", "full", "--gpu", "200GB", "--json")
    )
    assert data["kv_bytes_per_token"] * 8 == data["kv_bytes_per_token_by_query_heads"] == 2_621_440
    (context,) = data["contexts"]
    (full,) = context["policies"]
    assert (context["tokens"], full["policy"], full["row"]) == (4096, "full", 4096 * 327_680)
    assert full["most_rows"] == (int(0.9 * 200e9) - 141_107_412_992) // full["row"]
    assert full["batches"][0]["fits"] is True


def test_a_wrong_length_is_refused_before_anything_is_counted() -> None:
    with pytest.raises(RequestError, match="context"):
        capacities(KNOWN[PROJECTIONS[0].model], ["h2o budget=0.5"], [131_072, 8], 512, "auto", None, Machine())
