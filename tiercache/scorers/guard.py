"""What a user's own scorer raises or returns wrongly becomes an error that names the scorer, the hook and the line."""

import traceback
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tiercache.errors import PolicyError, TierCacheError
from tiercache.scorers.base import Scorer, View
from tiercache.thoughts import EXECUTION, REASONING, TRANSITION

HOOKS = ("fields", "state", "observe_prefill", "observe", "observe_hidden", "remember", "thought", "score")
FLAGS = ("needs_attention", "sums_heads", "observes", "remembers", "needs_keys", "needs_positions", "ordered", "shared")
TAKEN = ("pos", "k", "v", "kept")  # planes of the cache's own


def guard(scorer: Scorer, name: str) -> Scorer:
    """The same scorer, whose hooks raise PolicyError where they fail: a run that can't succeed isn't tried again.

    Raises:
        PolicyError: an attribute, the fields or the state aren't what `Scorer` says.
    """
    _check_attributes(scorer, name)
    file = name.rpartition(":")[0]
    for hook in HOOKS:
        setattr(scorer, hook, partial(_call, getattr(scorer, hook), f"scorer '{name}': {hook}", file))
    fields, state = scorer.fields(), scorer.state()
    _check_layout(name, fields, state)
    _check_accumulates(scorer, name, fields)
    hooks = {hook: getattr(scorer, hook) for hook in ("score", "remember", "observe_hidden", "thought")}

    def score(view: View) -> Tensor:
        return _check_score(hooks["score"](view), view, name)

    def remember(view: View) -> dict[str, Tensor]:
        return _check_fields(hooks["remember"](view), fields, view.pos.shape, f"scorer '{name}': remember")

    def observe_hidden(hidden: Mapping[int, Tensor], given: Mapping[str, Tensor]) -> dict[str, Tensor]:
        shape = next(iter(hidden.values())).shape[:2]
        return _check_fields(hooks["observe_hidden"](hidden, given), fields, shape, f"scorer '{name}': observe_hidden")

    def thought(given: Mapping[str, Tensor]) -> int:
        kind: int = hooks["thought"](given)
        if kind not in (TRANSITION, EXECUTION, REASONING):
            raise PolicyError(f"scorer '{name}': thought returned {kind!r}; it must be a kind of tiercache.thoughts.")
        return kind

    for checked in (score, remember, observe_hidden, thought):
        setattr(scorer, checked.__name__, checked)
    return scorer


def _call(hook: Callable[..., Any], what: str, file: str, *args: Any, **named: Any) -> Any:
    try:
        return hook(*args, **named)
    except (TierCacheError, torch.OutOfMemoryError, KeyboardInterrupt):
        raise
    except BaseException as problem:  # SystemExit too: it would take the worker with it
        lines = [frame.lineno for frame in traceback.extract_tb(problem.__traceback__) if frame.filename == file]
        where = f" in line {lines[-1]}" if lines else ""
        raise PolicyError(f"{what} raised {problem!r}{where}.") from problem


def _check_attributes(scorer: Scorer, name: str) -> None:
    for flag in FLAGS:
        if not isinstance(getattr(scorer, flag), bool):
            raise PolicyError(f"scorer '{name}': {flag} is true or false (got {getattr(scorer, flag)!r}).")
    window, layers = scorer.query_window, scorer.hidden_layers
    if isinstance(window, bool) or not isinstance(window, int) or window < 0:
        raise PolicyError(f"scorer '{name}': query_window is a whole number from 0 on (got {window!r}).")
    count = scorer.facts.geometry.layers if hasattr(scorer, "facts") else None
    whole = isinstance(layers, tuple | list) and all(isinstance(i, int) and i >= 0 for i in layers)
    if not whole or (count is not None and any(i >= count for i in layers)):
        most = "" if count is None else f" to {count - 1}"
        raise PolicyError(f"scorer '{name}': hidden_layers is a tuple of layers from 0{most} (got {layers!r}).")


def _check_accumulates(scorer: Scorer, name: str, fields: Mapping[str, torch.dtype]) -> None:
    field = scorer.accumulates
    if field is None:
        if scorer.retains != Scorer.retains:
            raise PolicyError(f"scorer '{name}': retains is of what accumulates names, which names nothing; set both.")
        return
    if not isinstance(scorer.retains, float | int) or not 0 <= scorer.retains <= 1:
        raise PolicyError(f"scorer '{name}': retains is a share from 0 to 1 (got {scorer.retains!r}).")
    if not scorer.needs_attention:
        raise PolicyError(f"scorer '{name}': accumulates adds up attention; set needs_attention = True.")
    if fields.get(field) is not scorer.wide:
        raise PolicyError(
            f"scorer '{name}': accumulates is None or names a field of type {scorer.wide} (got {field!r}; fields() "
            f"returned {dict(fields)})."
        )
    if type(scorer).observe is not Scorer.observe:
        raise PolicyError(
            f"scorer '{name}': accumulates says that kernels may add to '{field}' instead of calling observe, which is "
            "its own here; leave one of them out (accumulates = None)."
        )


def _check_layout(name: str, fields: Any, state: Any) -> None:
    types = isinstance(fields, Mapping) and all(isinstance(dtype, torch.dtype) for dtype in fields.values())
    if not types:
        raise PolicyError(f"scorer '{name}': fields returned {fields!r}; it must map names to torch types.")
    if taken := [field for field in fields if field in TAKEN]:
        raise PolicyError(f"scorer '{name}': fields can't be called {', '.join(taken)}; the cache has those itself.")
    shaped = isinstance(state, Mapping) and all(
        isinstance(each, tuple) and len(each) == 2 and isinstance(each[0], tuple) and isinstance(each[1], torch.dtype)
        for each in state.values()
    )
    if not shaped:
        raise PolicyError(f"scorer '{name}': state returned {state!r}; it must map names to (shape, torch type).")


def _check_fields(values: Any, fields: Mapping[str, torch.dtype], shape: Any, what: str) -> dict[str, Tensor]:
    if not isinstance(values, Mapping):
        raise PolicyError(f"{what} returned {type(values).__name__}; it must map names of fields to tensors.")
    for field, value in values.items():
        if field not in fields:
            raise PolicyError(f"{what} returned '{field}', which fields() doesn't name; it names {list(fields)}.")
        if not isinstance(value, Tensor) or value.shape != shape:
            have = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise PolicyError(f"{what} returned {have} for '{field}'; it must be a tensor of shape {tuple(shape)}.")
    return dict(values)


def _check_score(score: Any, view: View, name: str) -> Tensor:
    if not isinstance(score, Tensor):
        raise PolicyError(f"scorer '{name}': score returned {type(score).__name__}; it must return a tensor.")
    shape, wanted = tuple(score.shape), tuple(view.pos.shape)
    if len(shape) != len(wanted) or any(have not in (1, want) for have, want in zip(shape, wanted, strict=True)):
        raise PolicyError(f"scorer '{name}': score returned shape {shape}; it must broadcast to {wanted}.")
    if score.is_complex():
        raise PolicyError(f"scorer '{name}': score returned complex numbers, which have no order.")
    if bool((score.isnan() & view.candidate).any()):
        raise PolicyError(f"scorer '{name}': score returned NaN for a token that may leave.")
    return score
