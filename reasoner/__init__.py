"""A tiny model that reasons in public: grammar, tokenizer, training script and trained weights.

`WEIGHTS` is a model folder for transformers. Importing this package does not import torch.
"""

from pathlib import Path

WEIGHTS = Path(__file__).parent / "weights"

__all__ = ["WEIGHTS"]
