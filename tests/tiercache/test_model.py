"""Loading: folders of each family, safetensors only, plain words when something is wrong."""

from pathlib import Path

import pytest
import torch
from tiny import generate, loaded, prompts, requests, tiny

from reasoner import WEIGHTS
from reasoner.tokenizer import save_tokenizer
from tiercache.errors import ModelError
from tiercache.model import load
from tiercache.model_spec import ModelSpec


@pytest.fixture
def folder(family: str, tmp_path: Path) -> Path:
    model = tiny(family)
    before = model.config._attn_implementation
    model.set_attn_implementation("sdpa")
    model.save_pretrained(tmp_path)
    model.set_attn_implementation(before)
    save_tokenizer(tmp_path)
    return tmp_path


def test_a_folder_loads_as_what_was_saved(folder: Path, family: str) -> None:
    got = load(ModelSpec(id=str(folder), dtype="float64"))
    assert got.eos == {2}, "the tokenizer's"
    object.__setattr__(got, "eos", frozenset())
    batch = requests(prompts(20), new=20)
    assert generate(got, batch, "full")[0].tokens == generate(loaded(family), batch, "full")[0].tokens
    assert got.geometry == loaded(family).geometry


def test_dtype_follows_the_checkpoint_or_the_spec(folder: Path) -> None:
    assert load(ModelSpec(id=str(folder))).geometry.dtype == torch.float64
    assert load(ModelSpec(id=str(folder), dtype="bfloat16")).geometry.token_bytes * 4 == loaded_bytes(folder)


def loaded_bytes(folder: Path) -> int:
    return load(ModelSpec(id=str(folder), dtype="float64")).geometry.token_bytes


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_runs_through_every_kind_of_policy(dtype: str) -> None:
    model = load(ModelSpec(id="reasoner", dtype=dtype))
    batch = requests(prompts(30), new=24)
    batch = [type(r)(r.key, tuple(t % 90 for t in r.prompt), r.sampling, r.seed) for r in batch]
    for entry in (
        "full",
        {"name": "h2o", "budget": 0.5},
        {"name": "hierarchy", "hbm": 0.3, "evict": 0.1, "packed": 0.4, "every": 8, "recent": 8},
    ):
        assert generate(model, batch, entry)[0].ledger.hbm_tokens > 0


def test_pickled_weights_are_refused(tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((WEIGHTS / name).read_bytes())
    torch.save({}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelError, match="can't be loaded"):
        load(ModelSpec(id=str(tmp_path)))


@pytest.mark.parametrize("name", ["./nowhere", "./nowhere.gguf"])
def test_a_missing_model_is_named(name: str) -> None:
    with pytest.raises(ModelError, match="nowhere"):
        load(ModelSpec(id=name))


def test_a_template_is_needed_for_chat_and_its_tokens_are_not_doubled() -> None:
    model = load(ModelSpec(id="reasoner"))
    with pytest.raises(ModelError, match="chat template"):
        model.encode("x1 =2 ;", chat=True)
    assert model.tokenizer is not None
    model.tokenizer.chat_template = "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"
    text, ids = model.encode("x1 =2 ;", chat=True, system="x3 =4 ;")
    assert text.startswith("<bos>")
    assert ids.count(model.tokenizer.bos_token_id) == 1
    assert model.encode("x1 =2 ;")[1].count(model.tokenizer.bos_token_id) == 1
