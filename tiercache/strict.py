"""Strict, frozen configuration models whose errors a person can act on.

Unknown keys are refused with the nearest right name; every message carries field, value and what is allowed.
Nothing here imports torch, so that a wrong file is refused in well under a second.
"""

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from tiercache.errors import TierCacheError


def nearest(name: str, allowed: Iterable[str]) -> str:
    """` Did you mean 'x'?` for the closest allowed name, or an empty string."""
    close = difflib.get_close_matches(str(name), list(allowed), n=1, cutoff=0.5)
    return f" Did you mean '{close[0]}'?" if close else ""


class Strict(BaseModel):
    """Base of all configuration: frozen, no unknown keys, no silent coercion of wrong types."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @classmethod
    def parse(cls, data: Mapping[str, Any], where: str, error: type[TierCacheError]) -> Self:
        """Validates `data`; raises `error` naming each bad field below `where`."""
        try:
            return cls.model_validate(dict(data))
        except ValidationError as problem:
            lines = [_explain(cls, detail, where) for detail in problem.errors()]
            raise error("\n".join(lines)) from None


def _explain(model: type[BaseModel], detail: ErrorDetails, where: str) -> str:
    path = [str(part) for part in detail["loc"]]
    field = ".".join([where, *path]) if where else ".".join(path)
    if detail["type"] == "extra_forbidden":
        names = sorted(_fields_at(model, path[:-1]))
        hint = nearest(path[-1], names)
        return f"{field}: unknown key.{hint} Allowed keys: {', '.join(names)}."
    if detail["type"] == "missing":
        return f"{field}: is required."
    message = detail["msg"].removeprefix("Value error, ")
    return f"{field}: {message[0].lower()}{message[1:]} (got {_short(detail['input'])})."


def _fields_at(model: type[BaseModel], path: list[str]) -> Iterable[str]:
    """Names allowed at a nested place, as far as it can be followed through plain sub-models."""
    for part in path:
        info = model.model_fields.get(part)
        inner = info.annotation if info else None
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            model = inner
    return model.model_fields


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
