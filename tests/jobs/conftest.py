import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]

CONFIG = {
    "model_type": "qwen2",
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "hidden_size": 64,
    "vocab_size": 256,
    "max_position_embeddings": 2048,
    "torch_dtype": "float32",
}


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    """A model folder as far as anything without torch can tell."""
    folder = tmp_path / "tiny-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "model.safetensors").write_bytes(b"weights" * 100)
    return folder


@pytest.fixture
def sweep_data(model_folder: Path) -> dict[str, Any]:
    return {
        "name": "test",
        "models": [str(model_folder)],
        "benchmarks": [{"name": "chain", "n": 5}],
        "policies": ["full", {"name": "h2o", "budget": [0.3, 0.5]}],
    }


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    def to_file(text: str) -> Path:
        path = tmp_path / "sweep.yaml"
        path.write_text(text)
        return path

    return to_file
