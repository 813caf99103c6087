r"""From a generated text to the answer in it.

Nothing is guessed: an answer has to be in the form that the prompt asks for, complete, and outside the thinking
block. Policies that lose the thread make chains longer, so taking the last number in the text would flatter and blame
at random; that fallback exists and is off by default.
"""

import re
from dataclasses import dataclass

# What matters to boxes and braces: a box's command, an escaped character (`\\` too, but not the half of it that starts
# a box, as in `\\boxed{5}`), a brace.
_TOKEN = re.compile(r"(\\(?:boxed|fbox)(?![A-Za-z])\s*)|\\(?!\\(?:boxed|fbox)(?![A-Za-z])).|[{}]", re.DOTALL)
_BARE = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:/\d+)?|[A-Z](?![A-Za-z])")
_HASH = re.compile(r"####[ \t*]*+(\\?\$?[ \t]*+[-+−]?[ \t]*+\\?\$?(?:\d[\d,]*(?:\.\d+)?(?:/\d+)?|\.\d+)%?)")
_ANY_NUMBER = re.compile(r"[-−]?\$?\d[\d,]*(?:\.\d+)?")


@dataclass(frozen=True)
class Extracted:
    """An answer found in a text: its value as written, the rule that found it, where it ends in the text."""

    value: str
    rule: str
    end: int


def answer_part(text: str, thinking_open: bool = False) -> str:
    """The text outside the thinking block.

    `thinking_open`: the prompt itself ended in `<think>`, so the text begins inside the block. A block that never
    closes leaves nothing.
    """
    _, closed, tail = text.rpartition("</think>")
    if closed:
        text = tail
    elif thinking_open:
        return ""
    return text.partition("<think>")[0]


def thinking_opened(prompt: str) -> bool:
    """Whether a rendered prompt ends inside a thinking block, so that the generation begins there."""
    return prompt.rstrip().endswith("<think>")


def find_boxed(text: str) -> Extracted | None:
    r"""The last complete `\boxed{…}` or `\fbox{…}`, braces balanced, empty ones skipped; also bare `\boxed 5`.

    Of nested boxes the inner one, as it begins last. One pass, whatever the text.
    """
    found, found_at, waiting = None, -1, -1  # waiting: where the brace of the box just met has to be
    open_braces: list[int | None] = []  # innermost last; None for a brace that opens no box
    for token in _TOKEN.finditer(text):
        at, end = token.span()
        if token[1]:
            if text[end : end + 1] == "{":
                waiting = end
            elif bare := _BARE.match(text, end):
                found, found_at = Extracted(bare[0].rstrip(","), "boxed-bare", bare.end()), at
        elif token[0] == "{":
            open_braces.append(at if at == waiting else None)
        elif token[0] == "}" and open_braces:
            start = open_braces.pop()
            if start is not None and start > found_at and (content := text[start + 1 : at].strip()):
                found, found_at = Extracted(content, "boxed", at + 1), start
    return found


def find_hash(text: str) -> Extracted | None:
    """The last `#### <number>`, as GSM8K's own solutions end."""
    last = _last(_HASH, text)
    return Extracted(last[1].strip().rstrip(","), "hash", last.end()) if last else None


def find_last_number(text: str) -> Extracted | None:
    """The last number anywhere. A guess: use it only where the protocol says so."""
    last = _last(_ANY_NUMBER, text)
    return Extracted(last[0].rstrip(","), "last-number", last.end()) if last else None


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    found = list(pattern.finditer(text))
    return found[-1] if found else None
