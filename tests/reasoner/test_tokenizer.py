"""Text survives the tokenizer, and training sees the very ids that inference sees."""

from pathlib import Path

import pytest
from transformers import AutoTokenizer

from reasoner.curriculum import encode
from reasoner.grammar import DIFFICULTIES, make_problem
from reasoner.tokenizer import build_tokenizer, save_tokenizer


@pytest.mark.parametrize("difficulty", DIFFICULTIES)
def test_round_trip_and_training_ids(difficulty: str, tmp_path: Path) -> None:
    save_tokenizer(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer.chat_template is None
    for index in range(50):
        problem = make_problem(difficulty, 3, index)
        prompt = tokenizer(problem.prompt)["input_ids"]
        chain = tokenizer(problem.chain, add_special_tokens=False)["input_ids"]
        assert tokenizer.decode(prompt, skip_special_tokens=True) == problem.prompt
        assert tokenizer.decode(chain) == problem.chain
        assert encode(problem) == (prompt, [*chain, tokenizer.eos_token_id])


def test_white_space_is_harmless() -> None:
    tokenizer = build_tokenizer()
    prompt = make_problem("registers", 3, 0).prompt
    spaced = "  " + prompt.replace(" ; ", " ;\n") + " \n"
    assert tokenizer(spaced)["input_ids"] == tokenizer(prompt)["input_ids"]


def test_vocabulary_size() -> None:
    assert len(build_tokenizer()) == 112
