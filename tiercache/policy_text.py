"""A policy in one line, the way labels are written: `hierarchy hbm=0.3 evict=0.03 pin_prompt`. No torch here."""

import json
import re
from collections.abc import Mapping
from typing import Any

from tiercache.errors import PolicyError
from tiercache.policy import Policy, parse_policy

LONGEST = 1000  # characters; the pattern takes quadratic time

_WORD = re.compile(r"(\w+)(?:=(\[[^]]*\]|\([^)]*\)|\S*))?(?=\s|$)")


def policy_entry(text: str) -> dict[str, Any]:
    """A policy's entry from one line in the way labels are written: `hierarchy hbm=0.3 evict=0.03 pin_prompt`.

    Raises:
        PolicyError: it can't be read so. Whether the knobs exist is for `parse_policy` to say.
    """
    words = list(_WORD.finditer(text)) if len(text) <= LONGEST else []
    if not words or _WORD.sub("", text).strip() or "=" in words[0][0]:
        raise PolicyError(f"policy: is a name and knobs, such as 'hierarchy hbm=0.3 evict=0.03' (got {text[:80]!r}).")
    knobs = {word[1]: True if word[2] is None else _value(word[2]) for word in words[1:]}
    if len(knobs) < len(words) - 1:
        raise PolicyError(f"policy: names a knob twice (got {text[:80]!r}).")
    return {**knobs, "name": words[0][1]}


def read_policy(text: str) -> Policy:
    """The policy that such a line names.

    Raises:
        PolicyError: it can't be read, or isn't possible.
    """
    return parse_policy(policy_entry(text))


def _value(text: str) -> object:
    kind, _, number = text.partition(":")
    if kind in ("bytes", "ratio", "tokens"):
        return {kind: _value(number)}
    plain = text.replace("(", "[").replace(")", "]").replace(",]", "]")
    plain = {"None": "null", "True": "true", "False": "false"}.get(plain, plain)
    try:
        value: object = json.loads(plain)
    except (ValueError, RecursionError):
        return text
    return text if isinstance(value, Mapping) else value
