"""Tiny random models of each supported family, in float64, where rounding can't flip a near-tie."""

import random
from functools import cache

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, PreTrainedModel, Qwen2Config, Qwen3Config

from tiercache.engine import Engine, Limits
from tiercache.model import LoadedModel, wrap
from tiercache.policy import Policy, parse_policy
from tiercache.requests import Completion, Request, Sampling

VOCAB = 256
SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
CONFIGS = {
    "llama": lambda: LlamaConfig(**SHAPE),
    "qwen2": lambda: Qwen2Config(**SHAPE),
    "qwen3": lambda: Qwen3Config(**SHAPE, head_dim=24),
    "mistral": lambda: MistralConfig(**SHAPE, sliding_window=None),
}
FAMILIES = tuple(CONFIGS)

DRIFTED = {"positions": "drifted"}
# One of each idea: what a test says of "every policy" is said of these.
POLICIES = {
    "full": "full",
    "streaming-ratio": {"name": "streaming", "budget": 0.5},
    "streaming-tokens": {"name": "streaming", "budget": 24, "positions": "true"},
    "streaming-rerotated": {"name": "streaming", "budget": 24, "positions": "rerotated"},
    "h2o-cache-positions": {"name": "h2o", "budget": 0.5, "positions": "cache"},
    "h2o-rerotated": {"name": "h2o", "budget": 24, "positions": "rerotated", "every": 5},
    "hierarchy-drifted": {
        "name": "hierarchy",
        "hbm": 0.3,
        "evict": 0.1,
        "every": 8,
        "recent": 8,
        "positions": "drifted",
    },
    "windows": {"name": "h2o", "budget": 0.5, "window": 4, "every": 4},
    "windows-tiered": {"name": "hierarchy", "hbm": 0.3, "evict": 0.2, "every": 8, "recent": 5, "window": 4},
    "chunks": {"name": "streaming", "budget": None, "chunk": 8, "chunk_keep": 0.4, "scorer": "random", "scope": "head"},
    "bytes": {"name": "h2o", "budget": {"bytes": 0.4}, "scope": "layer"},
    "shared-by-layer": {"name": "h2o", "budget": 0.5, "share": "layer", "floor": 0.2},
    "shared-by-all": {"name": "random", "budget": 0.4, "share": "all", "every": 4},
    "pyramid": {"name": "h2o", "budget": 20, "pyramid": 4},
    "pyramid-shared": {"name": "h2o", "budget": 0.6, "pyramid": 4, "share": "layer", "every": 3},
    "prefill-only": {"name": "h2o", "budget": 12, "every": 0},
    "h2o-ratio": {"name": "h2o", "budget": 0.5},
    "h2o-tokens": {"name": "h2o", "budget": 24},
    "h2o-pinned": {"name": "h2o", "budget": 0.4, "pin_prompt": True},
    "h2o-token-scope": {"name": "h2o", "budget": 0.5, "scope": "token"},
    "h2o-every-8": {"name": "h2o", "budget": 0.5, "every": 8},
    "random-head": {"name": "random", "budget": 0.5},
    "random-token": {"name": "random", "budget": 20, "scope": "token", "pin_prompt": False},
    "hierarchy": {"name": "hierarchy", "hbm": 0.3, "evict": 0.1, "every": 8, "recent": 8},
    "hierarchy-cumulative": {"name": "hierarchy", "hbm": 0.5, "evict": 0.3, "every": 8, "recent": 8, "compound": False},
    "hierarchy-stream": {"name": "hierarchy", "hbm": 0.3, "evict": 0.1, "every": 8, "recent": 8, "t1_read": "stream"},
    "hierarchy-packed": {"name": "hierarchy", "hbm": 0.3, "evict": 0.1, "packed": 0.4, "every": 8, "recent": 8},
    "h2o-tiered": {"name": "h2o", "budget": 0.6, "hbm": 0.5, "every": 4},
}


@cache
def tiny(family: str) -> PreTrainedModel:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS[family]()).double().eval()
    # A fresh model's biases are zero; a bias that a loader forgot would go unnoticed.
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(0, 0.3)
    return model


@cache
def loaded(family: str) -> LoadedModel:
    return wrap(tiny(family), None, torch.device("cpu"))


def prompts(*lengths: int, seed: int = 1) -> list[tuple[int, ...]]:
    rng = random.Random(seed)
    return [tuple(rng.randrange(VOCAB) for _ in range(length)) for length in lengths]


def requests(texts: list[tuple[int, ...]], new: int = 48, **sampling: float) -> list[Request]:
    return [
        Request(str(i), text, Sampling(max_new_tokens=new, **sampling), seed=1_000_003 * i + 7)
        for i, text in enumerate(texts)
    ]


def generate(
    model: LoadedModel, batch: list[Request], policy: Policy | str | dict[str, object], **limits: int
) -> list[Completion]:
    """Completions in the requests' order."""
    policy = policy if isinstance(policy, Policy) else parse_policy(policy)
    engine = Engine(model, Limits(**limits))
    found = {completion.key: completion for completion in engine.run(batch, policy)}
    return [found[request.key] for request in batch]


def assert_alone_as_together(
    model: LoadedModel, batch: list[Request], policy: Policy | str | dict[str, object], **limits: int
) -> None:
    """A row's tokens and ledger don't depend on its neighbours, nor on how the batch's prompts are cut."""
    alone = generate(model, batch, policy, max_batch=1)
    together = generate(model, batch, policy, **{"max_batch": len(batch), **limits})
    assert [c.tokens for c in together] == [c.tokens for c in alone]
    assert [c.ledger for c in together] == [c.ledger for c in alone]
