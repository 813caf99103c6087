"""Tables of what there is to choose from: policies, benchmarks, models."""

from rich.box import SIMPLE_HEAD
from rich.table import Table

from jobs.benchmarks.base import ChatOptions
from jobs.benchmarks.catalog import registry
from jobs.report import bytes_text
from tiercache.catalog import PRESETS, SIGNALS
from tiercache.catalog.base import Preset
from tiercache.gpus import gpus_for
from tiercache.policy import DEFAULT_SCORER, KNOBS
from tiercache.shapes import FAMILIES, KNOWN

HUB_OPTIONS = ("data", "revision", "unscorable")
GPU_SIZES = (24, 80)  # GiB: a workstation's card and a server's


def policies_table() -> Table:
    """The presets: what each keeps and protects, its signal and scope, when it acts, its parameters, its source."""
    table = Table(title="Policies", title_justify="left", box=SIMPLE_HEAD, show_lines=False)
    for name in ("name, source", "keeps", "signal, scope, when it acts", "protects", "parameters"):
        table.add_column(name, overflow="fold")
    for name, preset in PRESETS.items():
        table.add_row(
            f"{name}\n{preset.source}",
            preset.summary,
            _signal(preset),
            preset.protects,
            _parameters(preset),
            end_section=True,
        )
    table.caption = (
        "* is needed. `full` takes no knobs; every other policy takes those of docs/policies/README.md. What\n"
        "contradicts itself or would have no effect is refused, with the reason."
    )
    table.caption_justify = "left"
    return table


def _signal(preset: Preset) -> str:
    signal = SIGNALS[preset.defaults.get("scorer", DEFAULT_SCORER)]
    needs = f" (from {', '.join(signal.needs)})" if signal.needs else ""
    scope = preset.defaults.get("scope", signal.model_fields["scope"].default)
    return f"{preset.defaults.get('scorer', DEFAULT_SCORER)}{needs}\nper {scope}\n{_acts(preset)}"


def _acts(preset: Preset) -> str:
    if not preset.open:
        return "never"
    if "pages" in preset.defaults:
        return "at each read"
    if "chunk" in preset.defaults:
        return "when a chunk is complete"
    every = preset.defaults.get("every", 1)
    return {0: "after the prefill", 1: "at every step"}.get(every, f"every {every} steps")


def _parameters(preset: Preset) -> str:
    """Needed knobs, what the preset sets, and its scorer's own with their defaults."""
    signal = SIGNALS[preset.defaults.get("scorer", DEFAULT_SCORER)]
    own = {name: info.default for name, info in signal.model_fields.items() if name not in KNOBS}
    settled = {**own, **{knob: value for knob, value in preset.defaults.items() if knob not in ("scorer", "scope")}}
    words = [f"{knob}*" for knob in preset.required]
    words += [f"{knob}: {_plain(value)}" for knob, value in settled.items() if knob not in preset.required]
    return ", ".join(words) or "–"


def benchmarks_table() -> Table:
    """The benchmarks with their data, options, generation in their field, and metric."""
    table = Table(title="Benchmarks", title_justify="left", box=SIMPLE_HEAD, caption_justify="left")
    for name in ("name", "what it asks", "options", "generation", "score"):
        table.add_column(name, overflow="fold")
    for name, kind in registry().items():
        benchmark = kind()
        own = benchmark.options.model_dump(exclude={"sampling"} | set(ChatOptions.model_fields))
        options = ", ".join(f"{key}: {_plain(value)}" for key, value in own.items() if key not in HUB_OPTIONS)
        sampling = ", ".join(f"{key}: {value}" for key, value in benchmark.sampling.model_dump().items())
        repeats = f", {kind.repeats} repeats" if kind.repeats > 1 else ""
        data = f"{kind.summary}; {benchmark.source or 'generated'}; {kind.paper}"
        table.add_row(name, data, options or "–", sampling + repeats, kind.metric)
    table.caption = (
        "All take n and sampling; all but chain prompt_mode, system, think; those with a data set data, revision,\n"
        "unscorable. docs/benchmarks.md has every option and grader."
    )
    return table


def models_table() -> Table:
    """Models whose dimensions are known without network; any other id, folder or GGUF file works as well."""
    table = Table(title="Models known to `plan`", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("id", overflow="fold")
    for name in ("layers", "heads", "KV heads", "head size", "weights (bf16)", "GPUs", "KV per token", "context"):
        table.add_column(name, justify="right")
    for name, shape in KNOWN.items():
        weights = shape.weight_bytes
        table.add_row(
            name,
            *map(str, (shape.layers, shape.q_heads, shape.kv_heads, shape.head_dim)),
            bytes_text(weights),
            " / ".join(str(gpus_for(weights, size * 2**30)) for size in GPU_SIZES) if weights else "–",
            bytes_text(shape.kv_bytes_per_token()),
            f"{shape.max_context:,}" if shape.max_context else "–",
        )
    table.caption = (
        "`reasoner` ships with this package. Also: a folder with config.json and safetensors, a .gguf file, or a hub\n"
        f"id of the families {', '.join(FAMILIES)}.\n"
        f"GPUs: of {' / '.join(map(str, GPU_SIZES))} GiB, for the weights alone in bfloat16; float32 takes twice that. "
        "`plan` adds the cache."
    )
    table.caption_justify = "left"
    return table


def _plain(value: object) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(map(str, value)) + "]"
    return "null" if value is None else str(value)
