"""The engine as a model of lm-evaluation-harness: its generation tasks under any cache policy."""

import inspect
import logging
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, Self

from jinja2.exceptions import TemplateError
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.models.utils import has_bos_prefix
from lm_eval.utils import simple_parse_args_string
from tqdm import tqdm

from jobs.lm_eval.arguments import WHERE, check_names, merged, resolve_device
from jobs.lm_eval.generation import Plan, after_thinking, cut, draws, read
from jobs.lm_eval.usage import Usage
from jobs.spec import EngineSpec
from tiercache import Engine, Limits, ModelSpec, Request, load, parse_policy
from tiercache.errors import ModelError, RequestError
from tiercache.model import LoadedModel
from tiercache.requests import check_whole

log = logging.getLogger(__name__)


class TierCacheLM(TemplateLM):  # type: ignore[misc]  # the harness carries no types
    """`--model tiercache`. What isn't named below is a knob of the policy: `policy=h2o,budget=0.5`.

    pretrained       hub id, folder, path of a `.gguf` file, `reasoner`, or (in Python) a model that is loaded already.
    revision, gguf, dtype, trust_remote_code   as in a sweep file's `models`.
    policy           name of a preset.
    device           `auto` takes CUDA where there is one.
    max_batch, hbm_kv_budget, prefill_chunk    as in a sweep file's `engine`.
    max_length       tokens of prompt and output together; the model's own context where it isn't given.
    max_gen_toks     most generated tokens where a task doesn't say.
    seed             of sampling and of random eviction.
    think_end_token  text or id that ends the thinking; the answer is what follows, and stop strings apply to it alone.
    enable_thinking, chat_template_args        handed to the chat template.

    Raises:
        PolicyError, ModelError, RequestError: an argument is unknown or impossible.
    """

    def __init__(
        self,
        pretrained: str | LoadedModel = "",
        *,
        revision: str | None = None,
        gguf: str | None = None,
        dtype: str = "auto",
        trust_remote_code: bool = False,
        policy: str = "full",
        device: str = "auto",
        max_batch: int = 64,
        hbm_kv_budget: int | str | None = None,
        prefill_chunk: int = 512,
        max_length: int | None = None,
        max_gen_toks: int = 256,
        seed: int = 0,
        think_end_token: str | int | None = None,
        enable_thinking: bool | None = None,
        chat_template_args: Mapping[str, Any] | None = None,
        **knobs: Any,
    ) -> None:
        super().__init__()
        check_names(knobs, set(inspect.signature(TierCacheLM.__init__).parameters) - {"self", "knobs"})
        self.policy = parse_policy({"name": policy, **knobs}, WHERE)
        asked = {"max_batch": max_batch, "hbm_kv_budget": hbm_kv_budget, "prefill_chunk": prefill_chunk}
        spec = EngineSpec.parse(asked, WHERE, RequestError)
        check_whole(f"{WHERE}.max_gen_toks", max_gen_toks, 1)
        if max_length is not None:
            check_whole(f"{WHERE}.max_length", max_length, 1)
        if isinstance(pretrained, LoadedModel):
            loaded = pretrained
        elif pretrained == "":
            raise ModelError(f"{WHERE}.pretrained: is required: a hub id, a folder, a .gguf file, or reasoner.")
        else:
            model: dict[str, Any] = {"id": pretrained, "revision": revision, "gguf": gguf, "dtype": dtype}
            model["trust_remote_code"] = trust_remote_code
            loaded = load(ModelSpec.parse(model, WHERE, ModelError), resolve_device(device))
        if loaded.tokenizer is None:
            raise ModelError(f"{WHERE}.pretrained: this model was loaded without a tokenizer, and prompts are text.")
        if max_length is not None and max_length > loaded.max_context:
            raise ModelError(
                f"{WHERE}.max_length: {max_length} exceeds the model's {loaded.context_reason} of {loaded.max_context}."
            )
        self.engine = Engine(loaded, Limits(spec.max_batch, spec.hbm_kv_budget, spec.prefill_chunk))
        self.tokenizer: Any = loaded.tokenizer
        self.max_length = max_length or loaded.max_context
        self.max_gen_toks = max_gen_toks
        self.usage = Usage()
        self._device = loaded.device
        self._revision = revision
        self._seed = seed
        number = isinstance(think_end_token, str) and think_end_token.isdigit()
        self._think_end = int(think_end_token or 0) if number else think_end_token
        thinking = {} if enable_thinking is None else {"enable_thinking": enable_thinking}
        self._template_args = {**(chat_template_args or {}), **thinking}
        self._template: str | None = None

    @classmethod
    def create_from_arg_obj(cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None) -> Self:
        """What the harness calls with `--model_args` and with its own `--device` and `--batch_size`."""
        return cls(**merged(arg_dict, additional_config or {}))

    @classmethod
    def create_from_arg_string(cls, arg_string: str, additional_config: dict[str, Any] | None = None) -> Self:
        return cls.create_from_arg_obj(simple_parse_args_string(arg_string), additional_config)

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """The answers, in the requests' order; all requests go through one run of the engine, whatever their kwargs.

        The engine ends a sequence at its end-of-sequence token or at its limit, and the text is cut at the first stop
        string afterwards: the same text, for more steps.
        """
        eos = self.tokenizer.eos_token
        plans = [read(request.args[1], self.max_gen_toks, eos) for request in requests]
        contexts = [request.args[0] for request in requests]
        seeds, prompts = draws(contexts, self._seed), self._prompts(contexts, plans)
        todo = [Request(str(i), p, plans[i].sampling, seeds[i]) for i, p in enumerate(prompts)]
        answers = [""] * len(requests)
        with tqdm(total=len(todo), disable=disable_tqdm, desc=f"Generating under {self.policy.label}") as bar:
            for completion in self.engine.run(todo, self.policy):
                i = int(completion.key)
                answers[i] = self._answer(completion.tokens, plans[i])
                self.usage.add(completion.ledger, len(completion.tokens))
                self.cache_hook.add_partial("generate_until", requests[i].args, answers[i])
                bar.update()
        self.usage.add_run(self.engine.stats)
        return answers

    def _prompts(self, contexts: Sequence[str], plans: Sequence[Plan]) -> list[tuple[int, ...]]:
        """Token ids; where prompt and output exceed `max_length`, the prompt's beginning is left out."""
        prompts, cuts = [], 0
        for context, plan in zip(contexts, plans, strict=True):
            room = self.max_length - plan.sampling.max_new_tokens
            if room < 1:
                raise RequestError(
                    f"max_gen_toks: {plan.sampling.max_new_tokens} leaves no room for a prompt in max_length "
                    f"{self.max_length}; lower it, for example with --gen_kwargs max_gen_toks=..."
                )
            ids = self.tok_encode(context) or [self.prefix_token_id]
            cuts += len(ids) > room
            prompts.append(tuple(ids[-room:]))
        if cuts:
            log.warning(
                "%d of %d prompts exceed max_length %d less max_gen_toks; their beginnings are left out.",
                cuts,
                len(prompts),
                self.max_length,
            )
        return prompts

    def _answer(self, tokens: Sequence[int], plan: Plan) -> str:
        end = self._think_end
        if not isinstance(end, int):
            return cut(self.engine.loaded.decode(list(tokens)), plan, end)
        answer = after_thinking(tokens, end)
        text = self.engine.loaded.decode(list(answer))
        return cut(text if len(answer) == len(tokens) else text.lstrip(), plan, None)

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> NoReturn:
        """Refused: cache policies act while decoding, and a log-likelihood is one prefill."""
        self._loglikelihood_tokens(requests)

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> NoReturn:
        """Refused: cache policies act while decoding, and a log-likelihood is one prefill."""
        self._loglikelihood_tokens(requests)

    def _loglikelihood_tokens(self, requests: Sequence[Any], **kwargs: Any) -> NoReturn:
        names = sorted({str(name) for request in requests if (name := getattr(request, "task_name", None))})
        raise RequestError(
            f"tasks: {', '.join(names) or 'these'} ask for log-likelihoods. That is one prefill each, and a cache "
            "policy acts while decoding: every policy would get the same score. Choose tasks with output_type "
            "generate_until, for example gsm8k, gsm8k_cot_zeroshot, minerva_math500 or ifeval."
        )

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        """Token ids, with the special tokens that the tokenizer adds by itself, unless the text begins with BOS."""
        if add_special_tokens is None:
            add_special_tokens = not has_bos_prefix(string, self.tokenizer.bos_token)
        return list(self.tokenizer(string, add_special_tokens=add_special_tokens)["input_ids"])

    @property
    def eot_token_id(self) -> int:
        return int(self.tokenizer.eos_token_id)

    @property
    def prefix_token_id(self) -> int:
        bos = self.tokenizer.bos_token_id
        return self.eot_token_id if bos is None else int(bos)

    @property
    def tokenizer_name(self) -> str:
        return str(self.tokenizer.name_or_path).replace("/", "__")

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """The template that `apply_chat_template` will use: the tokenizer's, or of several the one of that name."""
        self._template = super().chat_template(chat_template)
        return self._template

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """A conversation as a prompt. Where the template knows no system turn, it is left out with a warning.

        Raises:
            ModelError: the model has no chat template.
        """
        if self.tokenizer.chat_template is None:
            raise ModelError("--apply_chat_template: this model has no chat template; leave the option out.")
        how: dict[str, Any] = {
            "tokenize": False,
            "chat_template": self._template,
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": not add_generation_prompt,
            **self._template_args,
        }
        try:
            return str(self.tokenizer.apply_chat_template(chat_history, **how))
        except TemplateError as problem:
            turns = [turn for turn in chat_history if turn["role"] != "system"]
            if len(turns) == len(chat_history):
                raise ModelError(f"--apply_chat_template: the model's template fails: {problem}.") from problem
            log.warning("The chat template fails (%s); the system turn is left out.", problem)
            return str(self.tokenizer.apply_chat_template(turns, **how))

    def get_model_info(self) -> dict[str, Any]:
        """What the results file says of this model beside its arguments: the whole policy, and what a run held."""
        model = self.engine.loaded.model
        return {
            "model_num_parameters": model.num_parameters(),
            "model_dtype": str(model.dtype),
            "model_revision": self._revision or "",
            "policy": self.policy.label,
            "policy_config": self.policy.config(),
            "kv_cache": self.usage.summary(),
        }
