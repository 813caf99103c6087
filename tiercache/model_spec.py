"""Which model to load, as data. Loading is in `model.py`; this module doesn't import torch."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from tiercache.strict import Strict

EMBEDDED = "reasoner"


class ModelSpec(Strict):
    """A model by hub id, local folder, GGUF file, or `reasoner` for the one that ships with this package.

    id                 hub id (`org/name`), folder, path of a `.gguf` file, or `reasoner`.
    revision           commit or tag on the hub; pin it for results that others can reproduce.
    gguf               file name inside a folder or a hub repository, when `id` itself isn't a `.gguf` file.
    dtype              `auto` follows the checkpoint (float32 for GGUF on a CPU).
    trust_remote_code  run code that comes with the checkpoint. Off by default.
    """

    id: Annotated[str, Field(min_length=1)]
    revision: str | None = None
    gguf: str | None = None
    dtype: Literal["auto", "float64", "float32", "bfloat16", "float16"] = "auto"
    trust_remote_code: Annotated[bool, Field(strict=True)] = False

    @model_validator(mode="after")
    def _gguf_name(self) -> "ModelSpec":
        if self.gguf is not None and not self.gguf.endswith(".gguf"):
            raise ValueError(f"gguf names a .gguf file, not '{self.gguf}'")
        return self

    @property
    def name(self) -> str:
        """Short name for tables: the last part of the id, without the file ending."""
        return Path(self.id).stem if self.id.endswith(".gguf") else self.id.rstrip("/").rsplit("/", 1)[-1]

    @property
    def local(self) -> bool:
        """Whether `id` points to this file system rather than to the hub."""
        looks_local = self.id.startswith((".", "/", "~")) or self.id.endswith(".gguf") or self.id.count("/") > 1
        return looks_local or Path(self.id).expanduser().exists()
