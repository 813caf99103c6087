"""Requests mean to our model what they mean to the harness's own."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from reasoner import WEIGHTS
from reasoner.grammar import Problem


@pytest.mark.parametrize(
    "kwargs",
    [
        {"until": [" ."], "max_gen_toks": 40},
        {"until": "=4", "max_gen_toks": 40},
        {"until": ["nothing", " ;", " x2"], "max_gen_toks": 40},
        {"max_new_tokens": 7},
        {"until": [], "max_gen_toks": 1, "temperature": 0.7, "do_sample": False},
        {"until": ["<eos>"], "max_gen_toks": 300, "num_beams": 1},
    ],
    ids=str,
)
def test_settings_mean_what_they_mean_to_the_harness_s_own_model(
    hf: Any, loaded: Any, kwargs: dict[str, Any], prompts: list[str], instances: Any, ours: Any
) -> None:
    asked = instances(prompts[:4], **kwargs)
    assert ours(loaded).generate_until(asked, disable_tqdm=True) == hf.generate_until(asked, disable_tqdm=True)


@pytest.mark.parametrize("start", ["", "<bos>", "<bos> "])
def test_bos_is_there_once(hf: Any, loaded: Any, start: str, prompts: list[str], ours: Any) -> None:
    model = ours(loaded)
    for prompt in (start + each for each in prompts[:3]):
        ids = hf.tok_batch_encode([prompt])[0][0].tolist()
        assert model.tok_encode(prompt) == ids
        assert ids.count(loaded.tokenizer.bos_token_id) == 1


@pytest.mark.parametrize("max_length", [40, 70, 250])
def test_long_prompts_lose_their_beginning(
    hf: Any,
    loaded: Any,
    max_length: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    prompts: list[str],
    instances: Any,
    ours: Any,
) -> None:
    asked = instances(prompts[:4], max_gen_toks=20, until=[])
    monkeypatch.setattr(hf, "_max_length", max_length)
    wanted = hf.generate_until(asked, disable_tqdm=True)
    caplog.clear()
    assert ours(loaded, max_length=max_length).generate_until(asked, disable_tqdm=True) == wanted
    assert ("their beginnings are left out" in caplog.text) == (max_length < 250)


def test_draws_depend_on_prompt_and_repeat_and_not_on_place(
    loaded: Any, prompts: list[str], instances: Any, ours: Any
) -> None:
    kwargs = {"do_sample": True, "temperature": 5.0, "max_gen_toks": 12, "until": []}
    model = ours(loaded, max_batch=3)
    some = instances(prompts[:4], **kwargs)
    first = model.generate_until(some, disable_tqdm=True)
    assert model.generate_until(some[::-1], disable_tqdm=True) == first[::-1]
    repeats = model.generate_until([some[0]] * 4, disable_tqdm=True)
    assert repeats[0] == first[0]
    assert len(set(repeats)) == 4
    assert ours(loaded, seed=1).generate_until(some, disable_tqdm=True) != first


def test_greedy_and_sampled_requests_share_a_run(loaded: Any, prompts: list[str], instances: Any, ours: Any) -> None:
    greedy = instances(prompts[:2], max_gen_toks=10, until=[])
    model = ours(loaded)
    alone = model.generate_until(greedy, disable_tqdm=True)
    wild = instances(prompts[:2], max_gen_toks=25, until=[], temperature=4.0)
    assert model.generate_until([wild[0], *greedy, wild[1]], disable_tqdm=True)[1:3] == alone


@pytest.mark.parametrize("end", ["#### ", 9, "9"])
def test_thinking_is_left_out_before_stops_apply(
    loaded: Any, end: str | int, prompts: list[str], instances: Any, ours: Any, problems: list[Problem]
) -> None:
    """The chain is the thinking, `#### ` (token 9) its end; a stop string inside the chain cuts nothing."""
    assert loaded.tokenizer.convert_ids_to_tokens(9).strip() == "####"
    found = ours(loaded, think_end_token=end).generate_until(
        instances(prompts[:3], max_gen_toks=400, until=[" ."]), disable_tqdm=True
    )
    assert found == [problem.answer for problem in problems[:3]]


def test_partial_answers_reach_the_harness_s_cache(loaded: Any, prompts: list[str], instances: Any, ours: Any) -> None:
    class Hook:
        seen: list[tuple[str, Any, str]] = []  # noqa: RUF012

        def add_partial(self, kind: str, request: Any, answer: str) -> None:
            self.seen.append((kind, request, answer))

    model, asked = ours(loaded), instances(prompts[:3], max_gen_toks=5, until=[])
    model.set_cache_hook(Hook())
    answers = model.generate_until(asked, disable_tqdm=True)
    wanted = [("generate_until", request.args, answer) for request, answer in zip(asked, answers, strict=True)]
    assert sorted(Hook.seen, key=str) == sorted(wanted, key=str)


def test_a_chat_template_is_used_as_the_harness_s_own_model_uses_it(
    harness: Any, tmp_path: Path, ours: Any, problems: list[Problem]
) -> None:
    from lm_eval.models.huggingface import HFLM

    from tiercache import ModelSpec, load

    folder = tmp_path / "chatty"
    shutil.copytree(WEIGHTS, folder)
    (folder / "chat_template.jinja").write_text(
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('none') }}{% endif %}"
        "{{ m['content'] }}{% endfor %}{% if enable_thinking %} .{% endif %}"
    )
    model = ours(load(ModelSpec(id=str(folder))), enable_thinking=True)
    reference = HFLM(str(folder), device="cpu", dtype="float32", enable_thinking=True, think_end_token="#### ")
    assert model.chat_template(True) == reference.chat_template(True)
    chat = [{"role": "system", "content": "ignored"}, {"role": "user", "content": problems[0].prompt}]
    text = model.apply_chat_template(chat)
    assert text == reference.apply_chat_template(chat) == f"<bos>{problems[0].prompt} ."
    assert model.tok_encode(text) == reference.tok_batch_encode([text])[0][0].tolist()
    assert model.tokenizer_name == reference.tokenizer_name
