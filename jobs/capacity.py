"""`tiercache capacity` as tables and as plain data; the arithmetic is `tiercache.capacity`."""

import re
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from jobs.plan import longest_context
from jobs.report import WIDTH, bytes_text
from tiercache.blocks import gpus_needed, weights_of
from tiercache.capacity import FORMULAS, PROJECTIONS, T1_READS, Capacity, capacity
from tiercache.errors import ModelError, RequestError, ResourceError
from tiercache.gpus import GPU_USABLE, Machine
from tiercache.model_spec import ModelSpec
from tiercache.policy_text import read_policy
from tiercache.shapes import KNOWN, ModelShape, shape_of
from tiercache.strict import nearest

DEFAULT_POLICIES = (
    "full",
    "h2o budget=0.25",
    "hierarchy hbm=0.3 evict=0",
    "hierarchy hbm=0.3 evict=0.03",
    "qevict budget=bytes:0.2",
)
BOUND = (
    "policies by thoughts: bytes are an upper bound. How much a thought keeps depends on its kind; all are counted as "
    "the kind that keeps most. So a price isn't a lower bound for them either."
)
COMPACT_BELOW = 136
UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
DECIMAL = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_SIZE = re.compile(r"(\d{1,6}(?:\.\d{1,6})?) ?([KMGT]?)(i?)B", re.IGNORECASE | re.ASCII)


def find_shape(model: str) -> ModelShape:
    """The shape of a model by hub id, by the last part of a known one, of a folder, a GGUF file or `reasoner`.

    Raises:
        ModelError: its dimensions aren't known here.
    """
    known = {name.rsplit("/", 1)[-1]: shape for name, shape in KNOWN.items()}
    found = known.get(model) or (shape_of(ModelSpec(id=model)) if model else None)
    if found is None:
        hint = nearest(model, [*known, *KNOWN, "reasoner"])
        raise ModelError(
            f"model: the dimensions of '{model}' aren't known here.{hint} Give one that `tiercache models` lists, "
            "`reasoner`, a folder with config.json, or a .gguf file."
        )
    return found


def read_bytes(text: str, option: str) -> int:
    """`80GiB`, `24 GB`, `512MiB`.

    Raises:
        RequestError: it isn't a size above 0.
    """
    match = _SIZE.fullmatch(text.strip())
    size = int(float(match[1]) * (UNITS if match[3] else DECIMAL)[match[2].upper()]) if match else 0
    if size < 1:
        raise RequestError(f"{option}: is a size with its unit, such as 80GiB or 24GB (got {text[:60]!r}).")
    return size


def read_counts(text: str, option: str) -> list[int]:
    """`2048,8192`: whole numbers from 1 on, each once, in this order.

    Raises:
        RequestError: one isn't.
    """
    words = [word.strip() for word in text.split(",")]
    if not all(re.fullmatch(r"0*[1-9][0-9]{0,8}", word) for word in words):
        raise RequestError(f"{option}: is one whole number from 1 on, or several with commas (got {text[:60]!r}).")
    return list(dict.fromkeys(map(int, words)))


def capacities(
    shape: ModelShape,
    policies: Sequence[str],
    contexts: Sequence[int],
    prompt: int,
    dtype: str,
    t1_read: str | None,
    machine: Machine,
) -> list[list[Capacity]]:
    """For each context one capacity for each policy. Everything is checked before anything is counted."""
    found = list(dict.fromkeys(map(read_policy, policies)))
    for context in sorted(contexts):  # lengths are refused before long ones are counted
        capacity(shape, read_policy("full"), context, prompt=prompt, dtype=dtype, t1_read=t1_read, machine=machine)
    return [
        [capacity(shape, each, n, prompt=prompt, dtype=dtype, t1_read=t1_read, machine=machine) for each in found]
        for n in contexts
    ]


def tables(groups: Sequence[Sequence[Capacity]], batches: Sequence[int], width: int = WIDTH) -> list[Table]:
    """One table for each context. A narrow one has neither tiers nor ways of reading that the policy doesn't use."""
    return [_table(group, batches, width < COMPACT_BELOW) for group in groups]


def notes(model: str, first: Capacity, contexts: Sequence[int], others: Sequence[Capacity] = ()) -> list[str]:
    """What the tables' numbers rest on, what the common error makes of them, and what to beware of.

    others: capacities in the same tables.
    """
    shape, machine = first.shape, first.machine
    usable = f"{first.usable / 2**30:.1f} of {machine.gpu_bytes / 2**30:g} GiB usable ({GPU_USABLE:.0%})"
    speeds = f"HBM {machine.hbm_gbps:g}, bus {machine.bus_gbps:g}, host memory {machine.host_gbps:g} GB/s"
    said = [
        f"{first.token:,} bytes a token in {shape.resolve(first.dtype)}, by {shape.kv_heads} KV heads. Counted by "
        f"{shape.q_heads} query heads, the common error, it would be {first.token_by_query_heads:,}.",
        f"weights {bytes_text(first.weights)}; {usable}; {speeds}.",
        "device is all that one sequence holds there: T0, T2, and staging or a copy of T1 where it is read so.",
        "bus is what it moves in a decode step, by the way T1 is read; rows is how many such sequences fit.",
        "tokens/s is an upper bound by bytes alone, at the fullest step; in brackets: so many rows don't fit.",
    ]
    for projection in PROJECTIONS:
        if KNOWN[projection.model] == shape:
            said.append(
                f"2605.09490 prints {projection.printed} for {projection.rows} x {projection.tokens:,} tokens of this "
                f"model: that counts query heads; it is {projection.corrected(shape):,} bytes."
            )
    if first.weights is None:
        said.append(f"{model}: the size of its weights isn't known here, so neither rows nor tokens/s are.")
    elif first.weights > first.usable:
        said.append(f"{model}: its weights don't fit this GPU{_split(first)}.")
    if first.depends_on_data or any(each.depends_on_data for each in others):
        said.append(BOUND)
    longest = longest_context(shape)
    if longest is not None and max(contexts) > longest:
        said.append(f"{model} takes {longest:,} tokens at most; longer contexts are arithmetic only.")
    return said


def _split(found: Capacity) -> str:
    weights = weights_of(found.shape, found.dtype)
    assert weights is not None, "known above"
    try:
        gpus = gpus_needed(weights, max(found.prompt, found.row), found.machine.gpu_bytes)
    except ResourceError:
        return ""
    return f"; split over GPUs, layer by layer, it takes {gpus}"


def as_data(model: str, groups: Sequence[Sequence[Capacity]], batches: Sequence[int]) -> dict[str, Any]:
    """All numbers, in bytes, as what JSON can hold."""
    first = groups[0][0]
    return {
        "model": model,
        "dtype": first.shape.resolve(first.dtype),
        "kv_bytes_per_token": first.token,
        "kv_bytes_per_token_by_query_heads": first.token_by_query_heads,
        "weight_bytes": first.weights,
        "usable_bytes": first.usable,
        "machine": asdict(first.machine),
        "prompt_tokens": first.tokens.prompt,
        "contexts": [
            {"tokens": group[0].context, "policies": [_entry(found, batches) for found in group]} for group in groups
        ],
        "formulas": FORMULAS,
    }


def _entry(found: Capacity, batches: Sequence[int]) -> dict[str, Any]:
    parts = ("t0", "t1", "t2", "staging", "copy", "row", "prompt", "full", "device_reads", "host_reads", "most_rows")
    return {
        "policy": found.policy.label,
        "t1_read": found.t1_read,
        **{part: getattr(found, part) for part in parts},
        "bus_per_step": {mode: found.bus(mode)._asdict() for mode in T1_READS},
        "batches": [
            {
                "rows": rows,
                "fits": None if found.most_rows is None else rows <= found.most_rows,
                "tokens_per_s": found.tokens_per_s(rows),
                "bound_by": found.bound_by(rows),
            }
            for rows in batches
        ],
    }


def _table(group: Sequence[Capacity], batches: Sequence[int], compact: bool) -> Table:
    first = group[0]
    title = Text(f"{first.context:,} tokens", style="bold")
    title.append(f"   {first.tokens.prompt:,} of them prompt; the full cache takes {bytes_text(first.full)}", "dim")
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("policy", overflow="fold", min_width=12)
    tiers = () if compact else ("T0", "T2")
    bus = ("bus",) if compact else tuple(f"bus\n{read}" for read in T1_READS)
    for name in ("device", *tiers, "host", *bus, "rows"):
        table.add_column(name, justify="right", no_wrap=True)
    for rows in batches:
        table.add_column(f"tokens/s\n{rows} rows" if rows > 1 else "tokens/s\n1 row", justify="right", no_wrap=True)
    for found in group:
        reads = (found.t1_read,) if compact else T1_READS
        sizes = (found.row, *(() if compact else (found.t0, found.t2)), found.t1)
        table.add_row(
            Text(found.policy.label),
            *map(_bytes, (*sizes, *(sum(found.bus(read)) for read in reads))),
            "–" if found.most_rows is None else f"{found.most_rows:,}",
            *(_rate(found, rows) for rows in batches),
        )
    return table


def _bytes(value: int) -> str:
    return bytes_text(value) if value else "–"


def _rate(found: Capacity, rows: int) -> str:
    rate, most = found.tokens_per_s(rows), found.most_rows
    if rate is None or most is None:
        return "–"
    text = f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"
    return text if rows <= most else f"({text})"
