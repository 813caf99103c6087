"""What a task's `generation_kwargs` ask for, and the text that answers: the rules of the harness's `hf` model."""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lm_eval.models.utils import normalize_gen_kwargs, postprocess_generated_text

from tiercache.errors import RequestError
from tiercache.requests import Sampling

READ = ("until", "max_gen_toks", "do_sample", "temperature", "top_p")
# Values with which a setting that the engine lacks changes nothing.
NEUTRAL: dict[str, tuple[object, ...]] = {
    "num_beams": (1,),
    "num_return_sequences": (1,),
    "repetition_penalty": (1.0,),
    "length_penalty": (1.0,),
    "top_k": (None, 0, -1),
    "min_p": (None, 0.0),
    "typical_p": (None, 1.0),
}
OF_SAMPLING = {"top_k", "min_p", "typical_p"}


@dataclass(frozen=True)
class Plan:
    """How one request is generated; `stops` are texts before the first of which the answer ends."""

    sampling: Sampling
    stops: tuple[str, ...]


def read(given: Mapping[str, Any], max_gen_toks: int, eos: str | None) -> Plan:
    """The plan for a task's `generation_kwargs`; `max_gen_toks` where they say nothing, `eos` as one more stop.

    Raises:
        RequestError: a value is impossible, or a setting would change the output and the engine hasn't got it.
    """
    try:
        asked: dict[str, Any] = dict(normalize_gen_kwargs(dict(given), max_gen_toks))
        temperature = float(asked.get("temperature") or 0.0) if asked["do_sample"] else 0.0
        top_p = float(asked.get("top_p") or 1.0)
    except (TypeError, ValueError) as problem:
        raise RequestError(f"generation_kwargs: {problem} (got {dict(given)!r}).") from None
    for name, value in asked.items():
        if name in READ or value in NEUTRAL.get(name, ()) or (temperature == 0 and name in OF_SAMPLING):
            continue
        if name == "max_length":
            raise RequestError("generation_kwargs.max_length: counts the prompt too; give max_gen_toks.")
        raise RequestError(
            f"generation_kwargs.{name}: the engine has no such setting (got {value!r}); allowed: {', '.join(READ)}."
        )
    stops = [stop for stop in asked["until"] if stop is not None]
    if not all(isinstance(stop, str) for stop in stops):
        raise RequestError(f"generation_kwargs.until: is a list of texts (got {stops!r}).")
    ends = dict.fromkeys(stop for stop in (*stops, eos) if stop)
    return Plan(Sampling(temperature, top_p, asked["max_gen_toks"]), tuple(ends))


def after_thinking(tokens: Sequence[int], end: int) -> Sequence[int]:
    """The tokens behind the last `end`; all of them where there is none."""
    for place in range(len(tokens) - 1, -1, -1):
        if tokens[place] == end:
            return tokens[place + 1 :]
    return tokens


def cut(text: str, plan: Plan, think_end: str | None) -> str:
    """The text behind the last `think_end`, before the first stop."""
    return str(postprocess_generated_text(text, list(plan.stops), think_end))


def draws(contexts: Sequence[str], seed: int) -> list[int]:
    """A seed of 63 bits for each, by prompt and repeat and not by place: neither other tasks nor a resumed run change
    what is drawn."""
    seen: Counter[str] = Counter()
    found = []
    for context in contexts:
        text = f"{seed}\0{seen[context]}\0{context}".encode("utf-8", "surrogatepass")
        found.append(int.from_bytes(hashlib.sha256(text).digest()[:8], "big") >> 1)
        seen[context] += 1
    return found
