"""What a model reads: template, thinking block, prefix, and prompts whose middle is cut out."""

from typing import Any

import pytest

from tiercache.errors import ModelError
from tiercache.rendering import CLOSED, OPEN, Rendering, Think, render


class Words:
    """A tokenizer of words, with a template that may open a thinking block."""

    def __init__(self, template: str | None = "{}", opens: bool = False) -> None:
        self.chat_template = template
        self.opens = opens
        self.words: list[str] = []

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        ids = []
        for word in text.split(" "):
            self.words.append(word)
            ids.append(len(self.words) - 1)
        return {"input_ids": [-1, *ids] if add_special_tokens else ids}

    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        return " ".join(self.words[i] for i in ids)

    def apply_chat_template(self, turns: list[dict[str, str]], **_: Any) -> str:
        said = "".join(f"<{turn['role']}>{turn['content']}" for turn in turns)
        return f"{said}<assistant>{OPEN if self.opens else ''}"


def test_raw_prompts_are_as_they_are() -> None:
    text, ids = render(Words(), "a b", Rendering(), " c")
    assert (text, ids) == ("a b c", [-1, 0, 1, 2])


def test_a_template_writes_the_special_tokens() -> None:
    text, ids = render(Words(), "q", Rendering(chat=True, system="s"), "It")
    assert text == "<system>s<user>q<assistant>It"
    assert -1 not in ids


THINKING: list[tuple[Think, bool, str]] = [
    ("template", False, ""),
    ("template", True, OPEN),
    ("open", False, OPEN),
    ("open", True, OPEN),
    ("closed", False, CLOSED),
    ("closed", True, CLOSED),
]


@pytest.mark.parametrize(("think", "opens", "end"), THINKING)
def test_thinking_blocks(think: Think, opens: bool, end: str) -> None:
    text, _ = render(Words(opens=opens), "q", Rendering(chat=True, think=think))
    assert text == f"<user>q<assistant>{end}"


def test_the_middle_is_cut_out() -> None:
    prompt = " ".join("abcdefgh")
    assert render(Words(), prompt, Rendering(limit=8))[0] == prompt
    assert render(Words(), prompt, Rendering(limit=5))[0] == "a bf g h"
    assert render(Words(), prompt, Rendering(chat=True, limit=2))[0] == "<user>ah<assistant>"


def test_what_is_missing_is_named() -> None:
    with pytest.raises(ModelError, match="without one"):
        render(None, "q", Rendering())
    with pytest.raises(ModelError, match="prompt_mode: raw"):
        render(Words(template=None), "q", Rendering(chat=True))
