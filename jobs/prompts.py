"""What can be said of prompts before a model is loaded: their tokens, and whether a chat can be rendered. No torch."""

import json
import math
from collections.abc import Sequence
from pathlib import Path

from tiercache.model_spec import ModelSpec

CHARS_PER_TOKEN = 3.5  # English prose; used only where the model's tokenizer isn't at hand


def count_tokens(place: Path | None, texts: Sequence[str], special: bool = True) -> list[int] | None:
    """Tokens of each text by the tokenizer of a local model; None where there is none to be read."""
    file = place / "tokenizer.json" if place is not None and place.is_dir() else None
    if file is None or not file.is_file():
        return None
    from tokenizers import Tokenizer

    try:
        loaded = Tokenizer.from_file(str(file))
        loaded.no_truncation()  # the file may carry both; a model's prompts are neither cut nor filled
        loaded.no_padding()
        return [len(encoding.ids) for encoding in loaded.encode_batch(list(texts), add_special_tokens=special)]
    except Exception:  # the library raises bare Exception; an estimate is good enough for a plan
        return None


def estimate_tokens(characters: float) -> int:
    """About how many tokens that much prose is."""
    return math.ceil(characters / CHARS_PER_TOKEN)


def lacks_chat_template(spec: ModelSpec, place: Path | None) -> bool:
    """Whether a local model folder certainly has no chat template; False where that can't be told from its files."""
    if place is None or not place.is_dir() or spec.trust_remote_code:
        return False
    if any(place.glob("*chat_template*")) or (place / "tekken.json").is_file():
        return False
    try:
        config = json.loads((place / "tokenizer_config.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return True
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(config, dict) and not config.get("chat_template")


def chat_refusal(model: str, benchmark: str) -> str:
    """What is said of a chat benchmark on a model that has no chat template."""
    return (
        f"benchmarks: {benchmark}.prompt_mode: 'chat' needs a chat template, and {model} has none; allowed for this "
        f"model: raw. Write {{name: {benchmark}, prompt_mode: raw}}."
    )
