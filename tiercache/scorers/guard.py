"""What a user's own scorer raises or returns wrongly becomes an error that names the scorer, the hook and the line."""

import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tiercache.errors import PolicyError, TierCacheError
from tiercache.scorers.base import Scorer, View

HOOKS = ("fields", "state", "observe_prefill", "observe", "observe_hidden", "remember", "thought", "score")


def guard(scorer: Scorer, name: str) -> Scorer:
    """The same scorer, whose hooks raise PolicyError where they fail: a run that can't succeed isn't tried again."""
    file = name.rpartition(":")[0]
    for hook in HOOKS:
        setattr(scorer, hook, partial(_call, getattr(scorer, hook), f"scorer '{name}': {hook}", file))
    score = scorer.score
    scorer.score = lambda view: _checked(score(view), view, name)  # type: ignore[method-assign]
    return scorer


def _call(hook: Callable[..., Any], what: str, file: str, *args: Any, **named: Any) -> Any:
    try:
        return hook(*args, **named)
    except (TierCacheError, torch.OutOfMemoryError):
        raise
    except Exception as problem:
        lines = [frame.lineno for frame in traceback.extract_tb(problem.__traceback__) if frame.filename == file]
        where = f" in line {lines[-1]}" if lines else ""
        raise PolicyError(f"{what} raised {problem!r}{where}.") from problem


def _checked(score: Any, view: View, name: str) -> Tensor:
    if not isinstance(score, Tensor):
        raise PolicyError(f"scorer '{name}': score returned {type(score).__name__}; it must return a tensor.")
    shape, wanted = tuple(score.shape), tuple(view.pos.shape)
    if len(shape) != len(wanted) or any(have not in (1, want) for have, want in zip(shape, wanted, strict=True)):
        raise PolicyError(
            f"scorer '{name}': score returned shape {shape}; it must broadcast to {wanted}, [L, R, H, S]."
        )
    if bool((score.isnan() & view.candidate).any()):
        raise PolicyError(f"scorer '{name}': score returned NaN for a token that may leave.")
    return score
