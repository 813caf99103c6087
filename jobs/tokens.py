"""Counting tokens as a model does, before it is loaded. No torch but for GGUF, whose tokenizer has to be built."""

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from tiercache.errors import BenchmarkError
from tiercache.model_spec import ModelSpec
from tiercache.shapes import locate


def token_counter(spec: ModelSpec, special: bool = True) -> Callable[[str], int]:
    """A function that counts the tokens of a text; `special`: with those that a tokenizer adds by itself.

    The tokenizer is read when it is first needed; the function raises BenchmarkError if it can't be.
    """
    return lambda text: len(_tokenizer(spec).encode(text, add_special_tokens=special).ids)


def at_hand(spec: ModelSpec) -> bool:
    """Whether the model's tokenizer can be read without network."""
    if locate(spec) is not None:
        return True
    from huggingface_hub import try_to_load_from_cache

    return isinstance(try_to_load_from_cache(spec.id, "tokenizer.json", revision=spec.revision), str)


@lru_cache(maxsize=8)
def _tokenizer(spec: ModelSpec) -> Any:
    from tokenizers import Tokenizer

    place = locate(spec)
    try:
        if place is not None and place.suffix == ".gguf":
            loaded = _from_gguf(place)
        else:
            loaded = Tokenizer.from_file(str(place / "tokenizer.json" if place is not None else _from_hub(spec)))
    except BenchmarkError:
        raise
    except Exception as problem:  # the libraries raise bare Exception
        first = (str(problem).splitlines() or [""])[0]
        raise BenchmarkError(
            f"{spec.id}: its tokenizer can't be read ({first:.200}), and prompts of a given length need it. "
            "A model folder needs a tokenizer.json; a hub id has to be reachable or prepared: tiercache prepare SPEC."
        ) from None
    loaded.no_truncation()  # the file may carry both; a model's prompts are neither cut nor filled
    loaded.no_padding()
    return loaded


def _from_hub(spec: ModelSpec) -> Path:
    from huggingface_hub import hf_hub_download

    return Path(hf_hub_download(spec.id, "tokenizer.json", revision=spec.revision))


def _from_gguf(place: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(place.parent), gguf_file=place.name).backend_tokenizer
