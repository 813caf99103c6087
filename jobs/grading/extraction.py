r"""From a generated text to the answer in it.

Nothing is guessed: an answer has to be in the form that the prompt asks for, complete, and outside the thinking
block. Policies that lose the thread make chains longer, so taking the last number in the text would flatter and blame
at random; that fallback exists and is off by default.
"""

import re
from dataclasses import dataclass

_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])\s*")
_BARE = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:/\d+)?|[A-Z](?![A-Za-z])")
_HASH = re.compile(r"####[ \t*]*(\\?\$?[ \t]*[-+−]?[ \t]*\\?\$?(?:\d[\d,]*(?:\.\d+)?(?:/\d+)?|\.\d+)%?)")
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


def find_boxed(text: str) -> Extracted | None:
    r"""The last complete `\boxed{…}` or `\fbox{…}`, braces balanced, empty ones skipped; also bare `\boxed 5`."""
    for match in reversed(list(_BOX.finditer(text))):
        start = match.end()
        if text[start : start + 1] == "{":
            stop = _closing_brace(text, start)
            content = text[start + 1 : stop].strip() if stop is not None else ""
            if content and stop is not None:
                return Extracted(content, "boxed", stop + 1)
        elif bare := _BARE.match(text, start):
            return Extracted(bare[0].rstrip(","), "boxed-bare", bare.end())
    return None


def _closing_brace(text: str, start: int) -> int | None:
    """Index of the brace that closes the one at `start`; escaped braces are characters, not structure."""
    depth, index = 0, start
    while index < len(text):
        char = text[index]
        if char == "\\":
            index += 2
            continue
        depth += (char == "{") - (char == "}")
        if depth == 0:
            return index
        index += 1
    return None


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
