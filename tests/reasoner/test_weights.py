"""The shipped weights solve held-out problems through the plain transformers interface."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from reasoner import WEIGHTS
from reasoner.curriculum import encode
from reasoner.decode import decode
from reasoner.evaluate import load, measure
from reasoner.grammar import DIFFICULTIES, make_problem
from reasoner.policies import HeavyHitters


def test_the_files_are_small() -> None:
    assert (WEIGHTS / "model.safetensors").stat().st_size <= 2_500_000


@pytest.mark.parametrize("difficulty", DIFFICULTIES)
def test_generate_solves_held_out_problems(difficulty: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(WEIGHTS)
    model = AutoModelForCausalLM.from_pretrained(WEIGHTS, dtype=torch.float32)
    problems = [make_problem(difficulty, 99, i) for i in range(16)]
    inputs = tokenizer([p.prompt for p in problems], padding=True, return_tensors="pt")
    output = model.generate(**{k: inputs[k] for k in ("input_ids", "attention_mask")})
    texts = tokenizer.batch_decode(output[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    right = [text.endswith(f"#### {p.answer}") for text, p in zip(texts, problems, strict=True)]
    assert sum(right) >= 15


def test_own_loop_agrees_with_the_reference_chain_and_evicts() -> None:
    net = load(WEIGHTS)
    prompt, chain = encode(make_problem("registers", 98, 0, entries=(10, 10)))
    full = decode(net, [prompt], [len(chain)])
    assert full.ids == [chain]
    halved = decode(net, [prompt], [len(chain)], HeavyHitters(0.5))
    assert halved.kept[0] < 0.8


def test_half_the_chain_is_not_enough_for_registers() -> None:
    net = load(WEIGHTS)
    assert measure(net, "registers", 16, HeavyHitters(0.5))["accuracy_percent"] <= 40
