"""From a problem's text to the prompt that a model reads: chat template, thinking block, prefix of the answer, cuts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tiercache.errors import ModelError

Think = Literal["template", "open", "closed"]

OPEN, CLOSED = "<think>\n", "<think>\n\n</think>\n\n"


@dataclass(frozen=True)
class Rendering:
    """How prompts are put to the model; part of the protocol.

    chat    as the user's turn (after an optional `system` turn) of the model's own template; else as they are.
    think   of a chat: `template` leaves it to the template; `open` has the reply begin inside `<think>`, as
            2501.12948 advises, unless the template does so already; `closed` has it begin after an empty block.
    limit   tokens; of a longer prompt the middle is cut out, so that its beginning and its end stay.
    """

    chat: bool = False
    system: str | None = None
    think: Think = "template"
    limit: int | None = None


def render(tokenizer: Any, prompt: str, how: Rendering, prefix: str = "") -> tuple[str, list[int]]:
    """The text that the model reads, which ends in `prefix`, and its token ids.

    A template writes the special tokens itself: they are not added a second time.

    Raises:
        ModelError: there is no tokenizer, or no chat template although one is asked for.
    """
    if tokenizer is None:
        raise ModelError("tokenizer: this model was loaded without one; give token ids instead of text.")
    if how.limit is not None:
        prompt = _without_middle(tokenizer, prompt, how.limit)
    if not how.chat:
        text = prompt + prefix
        return text, list(tokenizer(text)["input_ids"])
    if tokenizer.chat_template is None:
        raise ModelError(
            "prompt: 'chat' needs a chat template and this model has none; use raw prompts: chat=False, or "
            "prompt_mode: raw in a sweep."
        )
    turns = [{"role": "system", "content": how.system}] if how.system else []
    turns.append({"role": "user", "content": prompt})
    text = str(tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True))
    text = _thinking(text, how.think) + prefix
    return text, list(tokenizer(text, add_special_tokens=False)["input_ids"])


def _thinking(text: str, think: Think) -> str:
    begun = text.rstrip().endswith("<think>")
    if think == "template" or (think == "open" and begun):
        return text
    return (text.rstrip().removesuffix("<think>") if begun else text) + (OPEN if think == "open" else CLOSED)


def _without_middle(tokenizer: Any, text: str, limit: int) -> str:
    ids: Sequence[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    if len(ids) <= limit:
        return text
    first = limit // 2
    ends = (ids[:first], ids[len(ids) - (limit - first) :])
    return "".join(str(tokenizer.decode(end, skip_special_tokens=True)) for end in ends)
