"""Strict, frozen configuration models whose errors a person can act on.

Unknown keys are refused with the nearest right name; every message carries field, value and what is allowed.
Nothing here imports torch, so that a wrong file is refused in well under a second.
"""

import difflib
from collections.abc import Iterable, Mapping
from types import UnionType
from typing import Annotated, Any, Self, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, ValidationInfo, field_validator
from pydantic_core import ErrorDetails

from tiercache.errors import TierCacheError


def nearest(name: str, allowed: Iterable[str]) -> str:
    """` Did you mean 'x'?` for the closest allowed name, or an empty string."""
    close = difflib.get_close_matches(str(name), list(allowed), n=1, cutoff=0.5)
    return f" Did you mean '{close[0]}'?" if close else ""


class Strict(BaseModel):
    """Base of all configuration: frozen, no unknown keys, no silent coercion of wrong types."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _as_written(cls, value: Any, info: ValidationInfo) -> Any:
        """Text is no number, and neither is true: a word that slipped in between quotes is a mistake."""
        field = cls.model_fields[info.field_name or ""]
        if any(isinstance(each, BeforeValidator) for each in field.metadata):
            return value  # it reads other forms itself
        kinds = _kinds(field.annotation) - {type(None)}
        if kinds == {bool} and not isinstance(value, bool | None):
            raise ValueError("is true or false")
        if kinds and kinds <= {int, float} and isinstance(value, bool | str):
            raise ValueError("is a number")
        return value

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
    """Names allowed at a nested place, as far as it can be followed through sub-models, optional ones too."""
    for part in path:
        info = model.model_fields.get(part)
        for kind in _kinds(info.annotation) if info else ():
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                model = kind
    return model.model_fields


def _kinds(annotation: Any) -> set[Any]:
    """The types that a union, annotated or not, consists of."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _kinds(get_args(annotation)[0])
    if origin in (Union, UnionType):
        return set().union(*map(_kinds, get_args(annotation)))
    return {annotation}


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
