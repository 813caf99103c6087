"""A model split over devices gives the same tokens, and nothing crosses but by `move`.

There is one device here. So devices are labels: a mode of torch's sees every operation, labels what comes out by what
went in, and fails where two labels meet, as two GPUs would.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from tiny import generate, loaded, prompts, requests, tiny
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from tiercache import hf, split
from tiercache.blocks import Weights
from tiercache.engine import Engine, Limits
from tiercache.errors import ModelError, ResourceError
from tiercache.model import LoadedModel, load, wrap
from tiercache.model_spec import ModelSpec
from tiercache.split import spread

HOME, AWAY = torch.device("cpu", 0), torch.device("cpu", 1)  # both are the CPU; labels tell them apart


class Labels(TorchFunctionMode):
    """Every tensor has a device's label: that of what it was made from, `HOME` if of nothing."""

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = [x for x in tree_leaves((args, kwargs or {})) if isinstance(x, Tensor)]
        labels = {label(x) for x in given}
        assert len(labels) < 2, f"{func} has tensors of {len(labels)} devices"
        out = func(*args, **(kwargs or {}))
        for x in tree_leaves(out):
            if isinstance(x, Tensor):
                x.label = next(iter(labels), HOME)  # type: ignore[attr-defined]
        return out


def label(x: Tensor) -> torch.device:
    return getattr(x, "label", HOME)


@pytest.fixture
def moves(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[str, str]]:
    """Moves that would have crossed, by direction."""
    found: Counter[tuple[str, str]] = Counter()

    def move(x: Tensor, device: torch.device) -> Tensor:
        if label(x) == device:
            return x
        found[str(label(x)), str(device)] += 1
        with torch._C.DisableTorchFunction():
            moved = x.view_as(x)
        moved.label = device  # type: ignore[attr-defined]
        return moved

    monkeypatch.setattr(split, "move", move)
    return found


def dealt_out(family: str, sizes: Sequence[int]) -> LoadedModel:
    """A model of its own, layers of the second block labelled as away from home."""
    model = tiny.__wrapped__(family)
    where = spread(sizes, [HOME, AWAY])
    for layer, device in zip(model.model.layers, where.layers, strict=True):
        for parameter in layer.parameters():
            parameter.label = device  # type: ignore[attr-defined]
    with Labels():
        return wrap(model, None, HOME, where)


POLICIES: dict[str, Any] = {
    "full": "full",
    "h2o": {"name": "h2o", "budget": 0.5},
    "hierarchy": {"name": "hierarchy", "hbm": 0.3, "evict": 0.1, "packed": 0.4, "every": 8, "recent": 8},
    "streaming": {"name": "streaming", "budget": 24},
    "shared by all layers": {"name": "layer_defensivekv_d", "budget": 0.5, "every": 8, "recent": 8},
    "output weights": {"name": "epikv_kv", "budget": 24},
    "hidden states": {"name": "epikv", "budget": 24},
    "pages": {"name": "quest", "pages": 8, "read_budget": 24, "dense_layers": 1},
    "queries": {"name": "snapkv_d", "budget": 24, "every": 8, "queries": 4, "recent": 4},
}


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
@pytest.mark.parametrize("sizes", [(1, 1), (0, 2)], ids=str)
def test_the_same_tokens_and_nothing_meets(
    policy: Any, sizes: tuple[int, int], moves: Counter[tuple[str, str]]
) -> None:
    batch = requests(prompts(40, 9, 23), new=20)
    whole = generate(loaded("qwen2"), batch, policy, max_batch=3)
    model = dealt_out("qwen2", sizes)
    moves.clear()
    with Labels():
        found = generate(model, batch, policy, max_batch=3)
    assert [each.tokens for each in found] == [each.tokens for each in whole]
    assert [each.ledger for each in found] == [each.ledger for each in whole]
    assert moves[str(AWAY), str(HOME)] > 0
    assert moves[str(HOME), str(AWAY)] > 0


def test_modules_called_as_they_are(moves: Counter[tuple[str, str]]) -> None:
    """A hook keeps the engine from running the layers itself."""
    batch = requests(prompts(30), new=8)
    whole = generate(loaded("llama"), batch, "full")
    model = dealt_out("llama", (1, 1))
    model.model.model.layers[1].mlp.register_forward_hook(lambda *_: None)
    with Labels():
        found = generate(model, batch, "full")
    assert not hf.taken_over(model.model)
    assert found[0].tokens == whole[0].tokens


def test_what_crosses_in_a_step(moves: Counter[tuple[str, str]]) -> None:
    """Into the block hidden states, cosines and sines; back to the cache queries, keys, values, the last states."""
    model = dealt_out("llama", (1, 1))
    one, two = (requests(prompts(12), new=new) for new in (1, 2))
    counts = []
    for batch in (one, two):
        moves.clear()
        with Labels():
            generate(model, batch, "full")
        counts.append(Counter(moves))
    step = counts[1] - counts[0]
    assert step == {(str(HOME), str(AWAY)): 3 + 1, (str(AWAY), str(HOME)): 3 + 1}


def test_graphs_are_refused() -> None:
    model = wrap(tiny.__wrapped__("llama"), None, HOME, spread((1, 1), [HOME, AWAY]))
    with pytest.raises(ModelError, match="split over several"):
        list(Engine(model, Limits(compiled=True)).run(requests(prompts(5), new=2), "full"))  # type: ignore[arg-type]


def test_loading_deals_out_by_the_room() -> None:
    """The reasoner's layers on a second device that holds two of them, with the tokens of the whole."""
    whole = load(ModelSpec(id="reasoner"))
    weights = hf.weights(whole.model)
    assert weights.layers * weights.layer + weights.rest == sum(p.numel() * 4 for p in whole.model.parameters())
    assert weights == Weights(whole.geometry.layers, weights.layer, weights.rest)
    room = int(2.5 * weights.layer / 0.9)
    model = load(
        ModelSpec(id="reasoner"), HOME, [AWAY], room=max(room, int((weights.rest + weights.layer * 2) / 0.9) + 1)
    )
    where = hf.split_of(model.model)
    assert where is not None
    assert where.layers.count(AWAY) >= 2
    assert model.device == HOME
    assert hf.taken_over(model.model)
    batch = requests([tuple(whole.encode("a=1\n")[1])], new=10)
    assert [c.tokens for c in generate(model, batch, "full")] == [c.tokens for c in generate(whole, batch, "full")]
    with pytest.raises(ResourceError, match=r"takes \d+ GPUs of .* for its weights alone; this worker has 2"):
        load(ModelSpec(id="reasoner"), HOME, [AWAY], room=int((weights.rest + weights.layer) / 0.9) + 1)


def test_each_weight_has_a_place_before_it_is_loaded() -> None:
    """The map that transformers loads by names every module."""
    from accelerate.utils import check_device_map

    model = tiny("qwen3")
    where = spread((1, 1), [HOME, AWAY])
    places = hf.device_map(where)
    check_device_map(model, places)
    assert (places["model.layers.0"], places["model.layers.1"], places["lm_head"]) == (HOME, AWAY, HOME)
