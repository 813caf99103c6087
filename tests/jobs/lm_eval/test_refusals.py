"""What can't be run as asked is refused with one message; what the harness itself says is read."""

import inspect
from typing import Any

import pytest

from jobs.lm_eval.arguments import check_names, merged
from tiercache.catalog import SIGNALS
from tiercache.errors import ModelError, PolicyError, RequestError, TierCacheError
from tiercache.policy import KNOBS


def test_log_likelihoods_are_refused_by_name(loaded: Any, instances: Any, ours: Any) -> None:
    model, asked = ours(loaded), instances(["x"], task="hellaswag")
    for method in (model.loglikelihood, model.loglikelihood_rolling):
        with pytest.raises(RequestError, match=r"hellaswag ask.*act.* while decoding.*generate_until"):
            method(asked)


def test_no_chat_template_is_said(loaded: Any, ours: Any) -> None:
    with pytest.raises(ModelError, match="no chat template"):
        ours(loaded).apply_chat_template([{"role": "user", "content": "x"}])


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"policy": "h2o", "buget": 0.5}, PolicyError, "model_args.buget: unknown key. Did you mean 'budget'"),
        ({"policy": "h20"}, PolicyError, "model_args.name: unknown policy 'h20'. Did you mean 'h2o'"),
        ({"policy": "h2o"}, PolicyError, "model_args.budget: 'h2o' needs it"),
        ({"budget": 0.5}, PolicyError, "'full' keeps"),
        ({"max_lenght": 100}, RequestError, "model_args.max_lenght: unknown key. Did you mean 'max_length'"),
        ({"max_batch": 0}, RequestError, "model_args.max_batch"),
        ({"hbm_kv_budget": "lots"}, RequestError, "model_args.hbm_kv_budget"),
        ({"max_gen_toks": 0}, RequestError, "model_args.max_gen_toks"),
        ({"max_length": 5000}, ModelError, "max_position_embeddings of 1024"),
        ({"pretrained": ""}, ModelError, "pretrained: is required"),
        ({"pretrained": "reasoner", "dtype": "int3"}, ModelError, "model_args.dtype"),
        ({"pretrained": "reasoner", "device": "tpu?"}, RequestError, "model_args.device"),
    ],
)
def test_bad_arguments(
    ours: Any, loaded: Any, arguments: dict[str, Any], error: type[TierCacheError], message: str
) -> None:
    with pytest.raises(error) as raised:
        ours(**{"pretrained": loaded, **arguments})
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"num_beams": 4}, "generation_kwargs.num_beams: the engine has no such setting (got 4)"),
        ({"do_sample": True, "temperature": 0.5, "top_k": 40}, "generation_kwargs.top_k"),
        ({"do_sample": True, "temperature": 0.5, "top_p": 1.5}, "top_p: is a number, above 0 and at most 1"),
        ({"temperature": "hot"}, "generation_kwargs: could not convert"),
        ({"temperature": -1.0, "do_sample": True}, "temperature: is a number, 0 (greedy) or more"),
        ({"until": [3]}, "generation_kwargs.until: is a list of texts (got [3])"),
        ({"max_length": 50}, "generation_kwargs.max_length: counts the prompt too"),
        ({"max_gen_toks": 0}, "max_new_tokens: is a whole number from 1 on"),
        ({"max_gen_toks": 1024}, "leaves no room for a prompt in max_length 1024"),
    ],
)
def test_bad_generation_settings(loaded: Any, kwargs: dict[str, Any], message: str, instances: Any, ours: Any) -> None:
    with pytest.raises(RequestError) as raised:
        ours(loaded).generate_until(instances(["x1"], **kwargs), disable_tqdm=True)
    assert message in str(raised.value)


def test_what_only_sampling_reads_is_nothing_to_greedy(
    loaded: Any, prompts: list[str], instances: Any, ours: Any
) -> None:
    asked = instances(prompts[:1], do_sample=False, temperature=0.0, top_k=50, top_p=0.9, max_gen_toks=3)
    assert ours(loaded).generate_until(asked, disable_tqdm=True)[0]


def test_no_knob_is_an_argument_of_the_model_or_taken_for_a_slip_in_one(ours: Any) -> None:
    own = set(inspect.signature(ours.__init__).parameters) - {"self", "knobs"}
    knobs = {*KNOBS, "options", *(name for signal in SIGNALS.values() for name in signal.model_fields)}
    assert not knobs & own
    check_names(knobs, own)


@pytest.mark.parametrize(
    ("given", "options", "wanted"),
    [
        ({}, {"batch_size": 1, "max_batch_size": None, "device": None}, {}),
        ({}, {"batch_size": "16"}, {"max_batch": 16}),
        ({}, {"batch_size": "auto:4", "max_batch_size": 32}, {"max_batch": 32}),
        ({}, {"batch_size": "auto"}, {}),
        ({"max_batch": 4}, {"batch_size": 16}, {"max_batch": 4}),
        ({"batch_size": 8, "budget": 0.5}, {"batch_size": 1}, {"max_batch": 8, "budget": 0.5}),
        ({}, {"device": "cpu"}, {"device": "cpu"}),
        ({"device": "cpu"}, {"device": "cuda:0"}, {"device": "cpu"}),
        ({}, {"device": "cuda:0"}, {}),
        ({"device": "cuda"}, {"device": "cuda:0"}, {"device": "cuda"}),
    ],
)
def test_the_harness_s_own_options(
    given: dict[str, Any], options: dict[str, Any], wanted: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine without a GPU; the harness asks for cuda:0 and a batch of 1 where it was told nothing."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert merged(given, options) == wanted
