"""KV-cache policies for reasoning models: an engine, and the same policies inside transformers' `generate`.

The names below are imported when they are first used, so that reading a policy needs no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tiercache.attached import attach
    from tiercache.engine import Engine, Limits
    from tiercache.model import load
    from tiercache.model_spec import ModelSpec
    from tiercache.policy import Policy, parse_policy
    from tiercache.requests import Completion, Request, Sampling

__all__ = [
    "Completion",
    "Engine",
    "Limits",
    "ModelSpec",
    "Policy",
    "Request",
    "Sampling",
    "attach",
    "load",
    "parse_policy",
]

_HOMES = {
    "Completion": "requests",
    "Engine": "engine",
    "Limits": "engine",
    "ModelSpec": "model_spec",
    "Policy": "policy",
    "Request": "requests",
    "Sampling": "requests",
    "attach": "attached",
    "load": "model",
    "parse_policy": "policy",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tiercache' has no attribute '{name}'")
    return getattr(import_module(f"tiercache.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
