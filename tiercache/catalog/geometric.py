"""Keys and values alone, no attention: LagKV, KeyDiff, Expected Attention, TriAttention."""

from hashlib import sha256
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import BeforeValidator, Field

from tiercache.catalog.base import Preset, Signal

Count = Annotated[int, Field(ge=1, strict=True)]
NotNegative = Annotated[float, Field(ge=0.0)]
STAMP = "@sha256:"


def stamped(path: object) -> object:
    """`centres.safetensors` becomes `centres.safetensors@sha256:…`, so that a policy's fingerprint knows the contents.

    A path that is stamped already stays as it is: the file may lie on another machine.
    """
    if not isinstance(path, str) or STAMP in path:
        return path
    try:
        content = Path(path).expanduser().read_bytes()
    except OSError as problem:
        raise ValueError(f"can't be read ({problem.strerror}); make it with triattention.calibrate") from None
    return f"{path}{STAMP}{sha256(content).hexdigest()[:16]}"


class LagKV(Signal):
    """Ranks by the spread of keys and values within the range of the tokens that follow: the unusual are important.

    value_weight   what the values' part is multiplied by before it is added to the keys'.
    """

    implementation: ClassVar[str] = "tiercache.scorers.lagkv:LagKV"
    needs: ClassVar[tuple[str, ...]] = ("keys", "values")

    value_weight: NotNegative = 1.0


class KeyDiff(Signal):
    """Ranks by how far a key points away from the mean direction of all keys."""

    implementation: ClassVar[str] = "tiercache.scorers.keydiff:KeyDiff"
    needs: ClassVar[tuple[str, ...]] = ("keys",)


class Expected(Signal):
    """Ranks by the attention that a Gaussian model of the coming queries expects, times the value's length.

    queries   newest queries from which the model is estimated.
    future    coming positions over which it is averaged.
    epsilon   added to the attention before it meets the value's length; more gives the length more say.
    """

    implementation: ClassVar[str] = "tiercache.scorers.expected:ExpectedAttention"
    needs: ClassVar[tuple[str, ...]] = ("queries", "keys", "values")
    true_positions: ClassVar[bool] = True

    queries: Count = 256
    future: Count = 512
    epsilon: NotNegative = 0.0


class TriAttention(Signal):
    """Ranks by what a head's typical query will give a key at coming distances.

    centres   file of calibrated query centres; none: estimated from the newest queries of the sequence itself.
    queries   how many, if there is no file.
    future    the longest offset; the others are the powers of two below it.
    """

    implementation: ClassVar[str] = "tiercache.scorers.triattention:TriAttention"
    needs: ClassVar[tuple[str, ...]] = ("queries", "keys")
    true_positions: ClassVar[bool] = True

    centres: Annotated[str | None, BeforeValidator(stamped)] = None
    queries: Count = 128
    future: Count = 65536


SIGNALS: dict[str, type[Signal]] = {
    "lagkv": LagKV,
    "keydiff": KeyDiff,
    "expected": Expected,
    "triattention": TriAttention,
}

PRESETS: dict[str, Preset] = {
    "lagkv": Preset(
        "of each chunk the tokens least like the chunk that follows",
        "2504.04704",
        {"scorer": "lagkv", "scope": "head", "chunk": 128, "sinks": 4},
        ("chunk_keep",),
        "4 sinks, the last complete chunk and what follows it",
    ),
    "keydiff": Preset(
        "keys that point away from the others",
        "2504.15364",
        {"scorer": "keydiff", "scope": "head"},
        ("budget",),
    ),
    "expected_attention": Preset(
        "what a Gaussian model of the coming queries will attend to",
        "2510.00636",
        {"scorer": "expected", "scope": "head", "sinks": 4, "every": 512},
        ("budget",),
        "4 sinks, the newest token",
    ),
    "triattention": Preset(
        "what any head's typical query will attend to, near and far ahead",
        "2604.04921",
        {"scorer": "triattention", "scope": "token", "pin_prompt": True, "every": 128},
        ("budget",),
        "the prompt, the newest token",
    ),
}
