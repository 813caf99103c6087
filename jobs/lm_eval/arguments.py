"""The harness's arguments, and slips in them, before a model is loaded."""

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from tiercache.errors import RequestError
from tiercache.policy import KNOBS

WHERE = "model_args"


def merged(given: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """`--model_args` over the harness's own options. A batch of 1 is its default and says nothing."""
    found = {name: value for name, value in {**options, **given}.items() if value is not None}
    if "device" not in given and not torch.cuda.is_available() and str(found.get("device", "")).startswith("cuda"):
        del found["device"]  # the harness asks for cuda:0 unless it is told otherwise
    size, most = str(found.pop("batch_size", 1)), found.pop("max_batch_size", None)
    rows = most if size.startswith("auto") else int(size) if size.isdigit() and int(size) > 1 else None
    return {**({} if rows is None else {"max_batch": rows}), **found}


def check_names(knobs: Iterable[str], own: Iterable[str]) -> None:
    """A slip in an argument of the model itself would otherwise be taken for an unknown knob of the policy.

    Raises:
        RequestError: a knob that is nearly one of `own`.
    """
    names = set(own)
    for name in knobs:
        close = difflib.get_close_matches(name, [*names, *KNOBS], n=1, cutoff=0.75)
        if close and close[0] in names:
            raise RequestError(f"{WHERE}.{name}: unknown key. Did you mean '{close[0]}'?")


def resolve_device(wanted: str) -> torch.device:
    """`auto` is CUDA where there is one.

    Raises:
        RequestError: torch knows no such device.
    """
    try:
        return torch.device("cuda" if wanted == "auto" and torch.cuda.is_available() else wanted.replace("auto", "cpu"))
    except (RuntimeError, AttributeError):
        raise RequestError(f"{WHERE}.device: is auto, cpu, cuda or cuda:0, … (got {wanted!r}).") from None
