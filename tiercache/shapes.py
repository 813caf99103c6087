"""A model's dimensions without its weights: enough to count KV bytes and to plan, from JSON or GGUF metadata.

Stored heads are KV heads. Counting query heads instead overstates the cache by the group size: 7 times for
DeepSeek-R1-Distill-Qwen-7B. Nothing here imports torch.
"""

import importlib.util
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tiercache.errors import ModelError, PolicyError
from tiercache.footprint import Footprint
from tiercache.model_spec import EMBEDDED, ModelSpec
from tiercache.policy import Policy
from tiercache.sizes import Sizes, sizes
from tiercache.strict import nearest

ELEMENT_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
FAMILIES = ("llama", "qwen2", "qwen3", "mistral")


@dataclass(frozen=True)
class ModelShape:
    """Dimensions of a decoder-only model.

    weight_bytes    of all weights in `dtype`, or None where only the dimensions are known.
    dtype           what the checkpoint is loaded as when nothing else is asked for.
    tied            whether one table serves as embedding and as output projection.
    sliding_window  tokens, where some layers attend to a window only; None for full attention everywhere.
    """

    layers: int
    q_heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    vocab: int
    weight_bytes: int | None = None
    max_context: int | None = None
    sliding_window: int | None = None
    dtype: str = "bfloat16"
    tied: bool = False

    @property
    def tables(self) -> int:
        """Weights of the vocabulary's size: the embedding, and the output projection where it has its own."""
        return 1 if self.tied else 2

    @property
    def group(self) -> int:
        """Query heads that share a KV head."""
        return self.q_heads // self.kv_heads

    def kv_bytes_per_token(self, dtype: str = "auto") -> int:
        """Bytes of one token's keys and values over all layers and KV heads."""
        return 2 * self.layers * self.kv_heads * self.head_dim * ELEMENT_BYTES[self.resolve(dtype)]

    def sizes(self, policy: Policy, dtype: str = "auto") -> Sizes:
        """Bytes of a token in each form under this policy."""
        item = ELEMENT_BYTES[self.resolve(dtype)]
        try:
            return sizes(policy.storage, policy.placement.window, self.layers, self.kv_heads, self.head_dim, item)
        except PolicyError as problem:
            raise PolicyError(f"policies: '{policy.label}': {problem}") from None

    def device_bytes(self, tokens: Footprint, size: Sizes) -> int:
        """Most device bytes of one sequence, by the rule of the engine's admission."""
        return tokens.device_bytes(size)

    def host_bytes(self, tokens: Footprint, dtype: str = "auto") -> int:
        """Most host bytes of one sequence: T1, in full precision."""
        return tokens.ddr_peak * self.kv_bytes_per_token(dtype)

    def weights_as(self, dtype: str = "auto") -> int | None:
        """Bytes of the weights when loaded as `dtype`."""
        if self.weight_bytes is None:
            return None
        return self.weight_bytes * ELEMENT_BYTES[self.resolve(dtype)] // ELEMENT_BYTES[self.dtype]

    def resolve(self, dtype: str) -> str:
        return self.dtype if dtype == "auto" else dtype


def _qwen(layers: int, q: int, kv: int, hidden: int, vocab: int, weights: int, context: int = 131_072) -> ModelShape:
    return ModelShape(layers, q, kv, 128, hidden, vocab, weights, context)


_LLAMA_8B = ModelShape(32, 32, 8, 128, 4096, 128_256, 16_060_522_496, 131_072)

# Read from the checkpoints' configurations; weights in bfloat16. Lets a cluster sweep be planned without network.
KNOWN: dict[str, ModelShape] = {
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": _qwen(28, 12, 2, 1536, 151_936, 3_554_176_000),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B": _qwen(28, 28, 4, 3584, 152_064, 15_231_233_024),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-14B": _qwen(48, 40, 8, 5120, 152_064, 29_540_067_328),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B": _qwen(64, 40, 8, 5120, 152_064, 65_527_752_704),
    "deepseek-ai/DeepSeek-R1-Distill-Llama-8B": _LLAMA_8B,
    "deepseek-ai/DeepSeek-R1-Distill-Llama-70B": ModelShape(80, 64, 8, 128, 8192, 128_256, 141_107_412_992, 131_072),
    "meta-llama/Llama-3.1-8B-Instruct": _LLAMA_8B,
    "mistralai/Mistral-7B-Instruct-v0.3": ModelShape(32, 32, 8, 128, 4096, 32_768, 14_496_047_104, 32_768),
    "mistralai/Mistral-7B-Instruct-v0.2": ModelShape(32, 32, 8, 128, 4096, 32_000, 14_483_464_192, 32_768),
    "Qwen/Qwen2.5-7B-Instruct": _qwen(28, 28, 4, 3584, 152_064, 15_231_233_024, 32_768),
}


def locate(spec: ModelSpec) -> Path | None:
    """The folder or GGUF file of a local model, with `~` expanded; None for a hub id.

    Raises:
        ModelError: the model is local and isn't there; similar names in that folder are given.
    """
    if spec.id == EMBEDDED:
        package = importlib.util.find_spec("reasoner")
        folder = (
            Path(str(package.origin)).parent / "weights" if package and package.origin else Path("reasoner/weights")
        )
        if not (folder / "config.json").is_file():
            raise ModelError(f"{EMBEDDED}: its weights are missing from {folder}; reinstall the package.")
        return folder
    if not spec.local:
        return None
    path = Path(spec.id).expanduser()
    if spec.gguf is not None:
        path = path / spec.gguf
    if path.suffix == ".gguf" and not path.is_file():
        raise ModelError(f"{path}: no such GGUF file.{_similar(path)} Put the file there, or correct the model's id.")
    if not path.exists():
        raise ModelError(f"{path}: no such model folder.{_similar(path)}")
    if path.suffix != ".gguf" and not path.is_dir():
        raise ModelError(f"{path}: is neither a model folder nor a .gguf file.")
    return path


def _similar(path: Path) -> str:
    return nearest(path.name, (entry.name for entry in path.parent.iterdir())) if path.parent.is_dir() else ""


def shape_of(spec: ModelSpec) -> ModelShape | None:
    """The shape of a local model (folder or GGUF), or of a known hub id; None for a hub id that isn't known here.

    Raises:
        ModelError: a local model is missing, malformed or of a family that isn't supported.
    """
    place = locate(spec)
    if place is None:
        return KNOWN.get(spec.id)
    return shape_from_gguf(place) if place.suffix == ".gguf" else shape_from_folder(place)


def shape_from_folder(folder: Path) -> ModelShape:
    """Reads `config.json`; the weights' size is that of the safetensors files beside it, if there are any."""
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{folder}: has no config.json, so it isn't a model folder.") from None
    except (OSError, ValueError, RecursionError) as problem:
        raise ModelError(f"{path}: can't be read as JSON: {str(problem).splitlines()[0]}.") from None
    if not isinstance(config, dict):
        raise ModelError(f"{path}: isn't a JSON object.")
    weights = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    return shape_from_config(config, str(path), weights or None)


def shape_from_config(config: Mapping[str, Any], where: str, weight_bytes: int | None = None) -> ModelShape:
    """A shape from the keys of a transformers `config.json`.

    Raises:
        ModelError: the family isn't supported, or a dimension is missing or impossible.
    """
    family = config.get("model_type")
    if family not in FAMILIES:
        hint = nearest(str(family), FAMILIES)
        raise ModelError(f"{where}: model_type {family!r} isn't supported.{hint} Supported: {', '.join(FAMILIES)}.")
    layers, q_heads = _dimension(config, "num_hidden_layers", where), _dimension(config, "num_attention_heads", where)
    hidden = _dimension(config, "hidden_size", where)
    kv_heads = _dimension(config, "num_key_value_heads", where, q_heads)
    window = config.get("sliding_window")
    if family in ("qwen2", "qwen3") and not config.get("use_sliding_window", False):
        window = None  # these configurations carry a window that is switched off
    dtype = config.get("dtype", config.get("torch_dtype"))
    return ModelShape(
        layers=layers,
        q_heads=q_heads,
        kv_heads=_grouped(q_heads, kv_heads, where),
        head_dim=_dimension(config, "head_dim", where, hidden // q_heads),
        hidden=hidden,
        vocab=_dimension(config, "vocab_size", where),
        weight_bytes=weight_bytes,
        max_context=_dimension(config, "max_position_embeddings", where, 0) or None,
        sliding_window=window if isinstance(window, int) and window > 0 else None,
        dtype=dtype if isinstance(dtype, str) and dtype in ELEMENT_BYTES else "float32",
        tied=config.get("tie_word_embeddings") is True,
    )


def _dimension(config: Mapping[str, Any], key: str, where: str, default: int | None = None) -> int:
    value = config.get(key)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int) or value < (0 if default == 0 else 1):
        raise ModelError(f"{where}: {key} is {value!r}; it has to be a whole number from 1.")
    return value


def _grouped(q_heads: int, kv_heads: int, where: str) -> int:
    if q_heads % kv_heads:
        raise ModelError(f"{where}: {q_heads} attention heads can't be shared by {kv_heads} KV heads.")
    return kv_heads


def shape_from_gguf(path: Path) -> ModelShape:
    """Reads a GGUF file's metadata. Weights are counted dequantised, in float32, the way they are run.

    Raises:
        ModelError: not a GGUF file, or an architecture that isn't supported.
    """
    import gguf

    try:
        reader = gguf.GGUFReader(path)
        family = str(reader.fields["general.architecture"].contents())
    except (OSError, ValueError, KeyError, IndexError, OverflowError) as problem:
        raise ModelError(f"{path}: isn't a readable GGUF file: {problem}.") from None
    if family not in FAMILIES:
        raise ModelError(f"{path}: architecture '{family}' isn't supported. Supported: {', '.join(FAMILIES)}.")

    def field(key: str) -> Any:
        entry = reader.fields.get(f"{family}.{key}")
        return None if entry is None else entry.contents()

    tokens = reader.fields.get("tokenizer.ggml.tokens")
    config = {
        "model_type": family,
        "num_hidden_layers": field("block_count"),
        "num_attention_heads": field("attention.head_count"),
        "num_key_value_heads": field("attention.head_count_kv"),
        "head_dim": field("attention.key_length"),
        "hidden_size": field("embedding_length"),
        "vocab_size": field("vocab_size") or (len(tokens.data) if tokens is not None else None),
        "max_position_embeddings": field("context_length"),
        "sliding_window": field("attention.sliding_window"),
        "use_sliding_window": True,
        "dtype": "float32",
        "tie_word_embeddings": all(tensor.name != "output.weight" for tensor in reader.tensors),
    }
    elements = sum(int(tensor.n_elements) for tensor in reader.tensors)
    return shape_from_config(config, str(path), 4 * elements)
