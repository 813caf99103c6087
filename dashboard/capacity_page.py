"""What fits a GPU under a policy, and how fast it can be at best: arithmetic, so it needs no database."""

from __future__ import annotations

import math

import streamlit as st

from dashboard import capacity_figures as figures
from dashboard.choices import choose, remember, remembered, write
from dashboard.colours import looks
from dashboard.show import show
from dashboard.wording import human_bytes, percent
from tiercache.capacity import PROJECTIONS, T1_READS, Capacity, capacity, formulas
from tiercache.catalog import PRESETS, SIGNALS
from tiercache.errors import PolicyError, TierCacheError
from tiercache.gpus import GPUS, Machine
from tiercache.policy import Policy, parse_policy
from tiercache.policy_text import policy_entry
from tiercache.shapes import KNOWN, ModelShape

CONTEXTS = [2**power for power in range(10, 18)]
BATCHES = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]
PROMPTS = [128, 512, 2048, 8192]
OWN = "own numbers"
AS_POLICY = "as the policy says"
NEEDED = {"hbm": 0.3, "evict": 0.03, "budget": 0.25, "packed_bits": 4, "read_budget": 256, "chunk_keep": 0.5}
SHORTEST_SEGMENT = 32  # counting shorter ones over 100,000 tokens takes minutes


def page() -> None:
    """Show the page."""
    st.title("Capacity")
    columns = st.columns([3, 1, 1, 1])
    with columns[0]:
        model = choose("Model", list(KNOWN), "planned", lambda name: name.rsplit("/", 1)[-1])
    with columns[1]:
        context = _count("Context (tokens)", CONTEXTS, "context", 8192)
    with columns[2]:
        prompt = min(context, _count("of which prompt", PROMPTS, "prompt", 512))
    with columns[3]:
        rows = _count("Batch (rows)", BATCHES, "batch", 8)
    try:
        policy = _policy()
        machine, t1_read = _machine()
        with st.spinner("Counting tokens …"):
            _show(KNOWN[model], model, policy, context, prompt, rows, machine, t1_read)
    except TierCacheError as problem:  # it may quote what stands in the URL: plain text
        st.warning("This can't be planned", icon=":material/error:")
        st.text(str(problem))


def _count(label: str, options: list[int], name: str, usual: int) -> int:
    """A number out of a list, the usual one first in line for a URL that says nothing."""
    if remembered(name) not in [str(option) for option in options]:
        remember(name, str(usual))
    return int(choose(label, [str(option) for option in options], name, lambda text: f"{int(text):,}"))


def _policy() -> Policy:
    """A preset and its knobs; the URL has both in one, the way labels are written."""
    wanted, _, knobs = (remembered("policy") or "hierarchy").strip().partition(" ")
    columns = st.columns([1, 3])
    names = list(PRESETS)
    with columns[0]:
        name = st.selectbox("Policy", names, index=names.index(wanted) if wanted in names else 0, key="capacity preset")
    if name != wanted or not knobs:
        knobs = " ".join(f"{knob}={NEEDED[knob]}" for knob in PRESETS[name].required)
    with columns[1]:
        given = st.text_input("Knobs", value=knobs, placeholder="every=64 pin_prompt", key=f"capacity knobs {name}")
    text = f"{name} {given or ''}".strip()
    remember("policy", text)
    entry = policy_entry(text)
    scorer, segment = entry.get("scorer"), entry.get("segment")
    if scorer is not None and scorer not in SIGNALS:  # a file named in a link must not be run
        raise PolicyError(f"scorer: this page takes {', '.join(SIGNALS)}; bytes don't depend on it.")
    if isinstance(segment, int) and segment < SHORTEST_SEGMENT:
        raise PolicyError(f"segment: this page counts segments from {SHORTEST_SEGMENT} tokens on (got {segment}).")
    return parse_policy(entry)


def _machine() -> tuple[Machine, str | None]:
    """A GPU of the list or one's own, and how T1 is read."""
    columns = st.columns(2)
    with columns[0]:
        gpu = choose("GPU", [*GPUS, OWN], "gpu")
    with columns[1]:
        read = choose("T1, on the host, is read by", [AS_POLICY, *T1_READS], "t1_read")
    machine = GPUS.get(gpu)
    if machine is None:
        usual = Machine()
        fields = {
            "gpu_gib": ("Memory (GiB)", usual.gpu_bytes / 2**30),
            "hbm_gbps": ("Its bandwidth (GB/s)", usual.hbm_gbps),
            "bus_gbps": ("Bus, one direction (GB/s)", usual.bus_gbps),
            "host_gbps": ("Host memory (GB/s)", usual.host_gbps),
        }
        given = {}
        for column, (name, (label, value)) in zip(st.columns(len(fields)), fields.items(), strict=True):
            with column:
                given[name] = _number(write(label, name, f"{value:g}"), value)
        size = given.pop("gpu_gib") * 2**30
        machine = Machine(int(size) if math.isfinite(size) else 0, **given)
    return machine, None if read == AS_POLICY else read


def _number(text: str, usual: float) -> float:
    """What is no number is refused where the machine is made."""
    try:
        return float(text) if text else usual
    except ValueError:
        return math.nan


def _show(
    shape: ModelShape,
    model: str,
    policy: Policy,
    context: int,
    prompt: int,
    rows: int,
    machine: Machine,
    t1_read: str | None,
) -> None:
    policies = list(dict.fromkeys([parse_policy("full"), policy]))
    contexts = [each for each in CONTEXTS if each >= prompt and each <= (shape.max_context or each)]
    series = {
        each.label: [
            capacity(shape, each, length, prompt=prompt, t1_read=t1_read, machine=machine) for length in contexts
        ]
        for each in policies
    }
    found = [capacity(shape, each, context, prompt=prompt, t1_read=t1_read, machine=machine) for each in policies]
    look = looks([(each.label, each.name) for each in policies])
    _facts(found[-1], rows)
    _warnings(found[-1], rows)
    charts = (
        (figures.device_bars(found[::-1], rows), figures.rows_over_context(series, look)),
        (figures.bus_bars(found[::-1], rows), figures.speed_over_rows(found, look)),
    )
    for row in charts:
        for column, figure in zip(st.columns(2, gap="medium"), row, strict=True):
            name = f"capacity {figure.layout.title.text}"
            show(figure, alt=figures.alt_text(figure, found), name=name, place=column)
    st.caption(
        f"A token takes {found[0].token:,} bytes by its {shape.kv_heads} KV heads. Counted by {shape.q_heads} query "
        f"heads, the common error, it would be {found[0].token_by_query_heads:,}: {shape.group} times as much. "
        + " ".join(
            f"2605.09490 prints {each.printed} for {each.rows} x {each.tokens:,} tokens of this model; it is "
            f"{each.corrected(shape):,} bytes."
            for each in PROJECTIONS
            if each.model == model
        )
    )
    with st.expander("Formulas"):
        st.code(formulas(), language="python")
        st.text(
            "Tokens are counted at each tier's peak by the code that the cache obeys. Arithmetic, launches and "
            "latencies aren't counted: a step at that peak is no faster, and may be much slower. Positions, scores and "
            "unused slots come on top of the bytes."
        )


def _facts(chosen: Capacity, rows: int) -> None:
    speed = chosen.tokens_per_s(rows)
    facts = {
        "Device, a sequence": (human_bytes(chosen.row), f"{percent(chosen.row / chosen.full, 0)} of the full cache"),
        "Host, a sequence": (human_bytes(chosen.t1), f"{human_bytes(rows * chosen.t1)} for all rows"),
        "Bus, a step and sequence": (human_bytes(sum(chosen.bus(chosen.t1_read))), f"T1 is read by {chosen.t1_read}"),
        "Largest batch": (f"{chosen.most_rows or 0:,} rows", f"beside {human_bytes(chosen.weights)} of weights"),
        f"Tokens/s at {rows:,} rows": (f"≤ {speed or 0:,.0f}", f"decided by {chosen.bound_by(rows)}"),
    }
    for column, (label, (value, note)) in zip(st.columns(len(facts)), facts.items(), strict=True):
        column.metric(label, value)
        column.caption(note)


def _warnings(chosen: Capacity, rows: int) -> None:
    longest = chosen.shape.max_context
    if chosen.weights is not None and chosen.weights > chosen.usable:
        st.warning(
            "The weights alone don't fit this GPU. A sweep would give such a model several; this page plans one."
        )
    elif chosen.most_rows is not None and rows > chosen.most_rows:
        st.warning(f"{rows:,} rows don't fit; the tokens/s are those of a larger GPU of this speed.")
    if longest is not None and chosen.context > longest:
        st.warning(f"This model takes {longest:,} tokens at most; more is arithmetic only.")
