"""Which weights a model id stands for, found without loading them.

Results are kept under this identity, so replacing the files behind a path starts new cells, while moving a folder
or asking from another directory finds the old ones.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from tiercache.errors import ModelError
from tiercache.model_spec import ModelSpec
from tiercache.shapes import locate

WHOLE_FILE_BYTES = 64 * 2**20  # a weight file from this size on is identified by its name and size alone
EDGE_BYTES = 2**20  # of a GGUF file: first MiB (metadata) and last MiB (weights)
_DESCRIBING = (
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
    "chat_template.jinja",
)
_WEIGHTS = (".safetensors", ".gguf")  # pickled weights can run code and are never read


@dataclass(frozen=True)
class Revision:
    """`id` is the same wherever a local model lies; `warning` says why a result may not be reproducible."""

    id: str
    revision: str
    warning: str | None = None


def model_revision(spec: ModelSpec) -> Revision:
    """Identity of a model: a content hash for local files, `id@revision` for the hub.

    Raises:
        ModelError: a local model doesn't exist, has no weights or can't be read.
    """
    place = locate(spec)
    if place is None:
        if spec.revision:
            return Revision(spec.id, spec.revision)
        text = f"{spec.id} is not pinned: give `revision:` (a commit) so that others, and you later, get these weights."
        return Revision(spec.id, "unpinned", text)
    if spec.revision:
        raise ModelError(f"{spec.id}: `revision` is for models on the hub; this one is local and is hashed instead.")
    try:
        digest = _gguf_digest(place) if place.suffix == ".gguf" else _folder_digest(place)
    except OSError as problem:
        raise ModelError(f"{place}: can't be read: {problem.strerror or problem}.") from None
    return Revision(spec.name, f"sha256:{digest}")


def _gguf_digest(path: Path) -> str:
    size = path.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        digest.update(file.read(EDGE_BYTES))
        file.seek(max(0, size - EDGE_BYTES))
        digest.update(file.read(EDGE_BYTES))
    return digest.hexdigest()[:20]


def _folder_digest(folder: Path) -> str:
    files = sorted(file for file in folder.iterdir() if file.is_file())
    weights = [file for file in files if file.suffix in _WEIGHTS]
    if not weights:
        raise ModelError(f"{folder}: has no weight files ({', '.join(_WEIGHTS)}).")
    digest = hashlib.sha256()
    for file in files:
        if file.name in _DESCRIBING:
            _add(digest, file, whole=True)
        elif file in weights:
            _add(digest, file, whole=file.stat().st_size < WHOLE_FILE_BYTES)
    return digest.hexdigest()[:20]


def _add(digest: "hashlib._Hash", file: Path, whole: bool) -> None:
    digest.update(f"{file.name}\0{file.stat().st_size}\0".encode())
    if whole:
        digest.update(file.read_bytes())
