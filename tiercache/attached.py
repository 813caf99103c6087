"""A policy inside transformers' own `generate`.

    with attach(model, "hierarchy", hbm=0.3, evict=0.03) as attached:
        tokens = model.generate(**inputs, max_new_tokens=2048)
    print(attached.ledgers)

The model's `forward` is replaced for as long as the block lasts. The first call of a `generate` fills a `TieredCache`
with the prompts, each further call is one decode step over it: the engine's own functions. `generate` keeps choosing
the tokens. `forward` hands it a `Cache` that stores nothing and only stands for the running batch.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any, NoReturn

import torch
from torch import Tensor
from transformers import Cache, PreTrainedModel

from tiercache import hf
from tiercache.cache import TieredCache
from tiercache.engine import decode
from tiercache.errors import ModelError
from tiercache.ledger import SequenceBytes
from tiercache.model import LoadedModel, describe
from tiercache.policy import Policy, parse_policy
from tiercache.prefill import by_length, prefill

# Settings of `generate` that would run the model in another way than prompt first, then token by token.
ALLOWED: dict[str, tuple[object, ...]] = {
    "num_beams": (1,),
    "use_cache": (True,),
    "guidance_scale": (1, 1.0),
    "synced_gpus": (False,),
    "assistant_model": (),
    "prompt_lookup_num_tokens": (),
    "assistant_early_exit": (),
    "custom_generate": (),
    "cache_implementation": (),
    "prefill_chunk_size": (),
    "past_key_values": (),
    "inputs_embeds": (),
    "position_ids": (),
    "output_attentions": (False,),
    "output_hidden_states": (False,),
}
# What `forward` may be given beside its inputs: positions and their bookkeeping are the cache's own.
KNOWN = {"position_ids", "cache_position", "use_cache", "return_dict", "logits_to_keep"}


class Attached:
    """What `attach` yields.

    policy   the policy at work.
    ledgers  of each row of the last batch, in its order: tokens and bytes by tier. There once `generate` has returned;
             after a loop of one's own, once the block has ended.
    """

    def __init__(self, loaded: LoadedModel, policy: Policy, seed: int, prefill_chunk: int) -> None:
        self.policy = policy
        self.ledgers: list[SequenceBytes] = []
        self._loaded, self._seed, self._prefill_chunk = loaded, seed, prefill_chunk
        self._eos: frozenset[int] = frozenset()
        self._running: _Running | None = None

    @torch.no_grad()
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        **more: Any,
    ) -> Any:
        """Stands in for the model's `forward`; the logits are those of the last token, [rows, 1, vocab]."""
        self._check(input_ids, past_key_values, more)
        assert input_ids is not None, "checked"
        if isinstance(past_key_values, _Running):
            running = past_key_values
            logits = running.step(input_ids)
        else:
            prompts = _real_tokens(input_ids, attention_mask)
            running = self._running = _Running(self._loaded, self.policy, self._eos, input_ids.shape[1])
            logits = running.begin(prompts, self._seed, self._prefill_chunk)
        return hf.output(logits.unsqueeze(1), running)

    def generate(self, generate: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs transformers' `generate`, whose settings are checked first, and closes the books after it."""
        settings = {"generation_config": args[1] if len(args) > 1 else None, **kwargs}
        for name, allowed in ALLOWED.items():
            value = self._setting(name, settings)
            if value is not None and not any(value is each or value == each for each in allowed):
                shown = f"{name}={value!r}" if isinstance(value, bool | int | float | str) else name
                raise ModelError(f"generate: {shown} can't be combined with a cache policy; leave it out.")
        eos = self._setting("eos_token_id", settings)
        self._eos = frozenset() if eos is None else frozenset(torch.as_tensor(eos).flatten().tolist())
        self._running = None
        try:
            return generate(*args, **kwargs)
        finally:
            self._eos = frozenset()
            self.finish()

    def finish(self) -> None:
        """Closes the running batch's books and frees its cache."""
        if self._running is not None:
            self.ledgers = self._running.close()
            self._running = None

    def _setting(self, name: str, given: Mapping[str, Any]) -> Any:
        """As `generate` finds it: an argument, else its configuration, else the model's."""
        if name in given:
            return given[name]
        value = getattr(given["generation_config"], name, None)
        return getattr(self._loaded.model.generation_config, name, None) if value is None else value

    def _check(self, input_ids: Tensor | None, past: Cache | None, more: Mapping[str, Any]) -> None:
        if self._loaded.model.training:
            raise ModelError("attach: the model is in training mode; call model.eval() first.")
        if input_ids is None:
            raise ModelError("attach: needs input_ids; inputs_embeds aren't supported.")
        strange = [key for key, value in more.items() if key not in KNOWN and value is not None and value is not False]
        if strange:
            raise ModelError(f"attach: {', '.join(strange)} can't be combined with a cache policy; leave it out.")
        keep = more.get("logits_to_keep", 0)
        if not isinstance(keep, int) or keep > 1:
            raise ModelError("attach: there are logits of the last token only; logits_to_keep is 0 or 1.")
        if more.get("use_cache") is False:
            raise ModelError("attach: use_cache=False leaves no cache for the policy.")
        if past is not None and past is not self._running and past.get_seq_length() > 0:
            raise ModelError("attach: past_key_values are from elsewhere; a batch begins with its whole prompts.")


class _Running(Cache):
    """A batch between two calls of `forward`.

    `order[row]` is a cache row's place in the batch: where a row has ended, the last one takes its place.
    """

    def __init__(self, loaded: LoadedModel, policy: Policy, eos: frozenset[int], columns: int) -> None:
        super().__init__(layers=[])
        self.loaded, self.eos, self.columns = loaded, eos, columns
        self.cache: TieredCache | None = TieredCache(loaded.geometry, policy, loaded.device, loaded.facts)
        self.order: list[int] = []
        self.ledgers: dict[int, SequenceBytes] = {}

    def begin(self, prompts: list[list[int]], seed: int, chunk: int) -> Tensor:
        """Runs the prompts; logits [rows, vocab] of their last tokens."""
        assert self.cache is not None, "it is new"
        self._check_context(max(map(len, prompts)))
        last = []
        for group in by_length(prompts, chunk):
            texts, seeds = [prompts[i] for i in group], [seed + i for i in group]
            last.append(prefill(self.loaded, self.cache, texts, seeds, chunk))
            self.order += group
        return self._logits(torch.cat(last), len(prompts))

    def step(self, tokens: Tensor) -> Tensor:
        """Runs each row's newest token, [rows, 1]; logits [rows, vocab], meaningless for rows that have ended."""
        if self.cache is None:
            raise ModelError("attach: this batch has ended; begin another with its whole prompts.")
        if tokens.shape != (len(self.order) + len(self.ledgers), 1):
            raise ModelError(
                "attach: after the prompts, each call takes one token a row; several prefills aren't supported."
            )
        newest: list[int] = tokens[:, 0].tolist()
        self.columns += 1
        for row in range(len(self.order) - 1, -1, -1):
            if newest[self.order[row]] in self.eos:
                self._leave(row)
        assert self.order, "generate has stopped by then"
        self._check_context(1 + max(tier.seen for tier in self.cache.tiers))
        arranged = [newest[i] for i in self.order]
        return self._logits(decode(self.loaded, self.cache, arranged), len(newest))

    def close(self) -> list[SequenceBytes]:
        """Ends all rows; their ledgers, in the batch's order."""
        while self.order:
            self._leave(len(self.order) - 1)
        self.cache = None
        return [self.ledgers[i] for i in sorted(self.ledgers)]

    def _leave(self, row: int) -> None:
        assert self.cache is not None, "rows are running"
        self.ledgers[self.order[row]] = self.cache.leave(row)
        self.order[row] = self.order[-1]
        self.order.pop()

    def _logits(self, hidden: Tensor, rows: int) -> Tensor:
        """From the cache's order to the batch's."""
        found = hf.logits(self.loaded.model, hidden)
        logits = found.new_zeros(rows, found.shape[1])
        logits[self.order] = found
        return logits

    def _check_context(self, tokens: int) -> None:
        if tokens > self.loaded.max_context:
            raise ModelError(
                f"generate: {tokens} tokens exceed the model's {self.loaded.context_reason} of "
                f"{self.loaded.max_context}; lower max_new_tokens."
            )

    # What transformers may ask of a cache ----------------------------------------------------------------------------

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Columns of the batch so far, padding included, as transformers counts."""
        return self.columns

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return -1

    @property
    def is_compileable(self) -> bool:
        return False

    @property
    def is_croppable(self) -> bool:
        return False

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise ModelError("attach: beam search, assisted decoding and the like can't be combined with a cache policy.")

    update = reorder_cache = crop = batch_repeat_interleave = batch_select_indices = reset = _refuse


@contextmanager
def attach(
    model: PreTrainedModel,
    policy: Policy | str | Mapping[str, Any],
    *,
    seed: int = 0,
    prefill_chunk: int = 512,
    **knobs: Any,
) -> Iterator[Attached]:
    """Runs `model.generate` under a policy inside the block; afterwards the model is what it was.

    Greedy decoding and sampling, one prompt or a batch padded on the left. Row i of a batch has the seed `seed + i`
    for random eviction; sampling is transformers' own. A row that ends with an end-of-sequence token leaves the cache
    then; one that ends otherwise (a stop string, say) is counted until the batch ends.

    Args:
        model: a causal language model of a supported family, in evaluation mode.
        policy: a name with `knobs`, a mapping, or a parsed policy.

    Raises:
        PolicyError: the policy is impossible.
        ModelError: the model isn't supported; inside the block, what `generate` was asked for isn't.
    """
    if isinstance(policy, Policy) and knobs:
        raise TypeError("a parsed policy takes no further knobs")
    if not isinstance(policy, Policy):
        policy = parse_policy({**({"name": policy} if isinstance(policy, str) else policy), **knobs})
    with ExitStack() as stack:
        stack.enter_context(hf.prepared(model))
        _check_model(model)
        attached = Attached(describe(model), policy, seed, prefill_chunk)
        stack.callback(attached.finish)
        forward: Any = model.forward
        generate: Any = model.generate
        replaced = {
            "forward": wraps(forward)(lambda *args, **kwargs: attached.forward(*args, **kwargs)),
            "generate": wraps(generate)(lambda *args, **kwargs: attached.generate(generate, args, kwargs)),
        }
        for name, function in replaced.items():
            stack.enter_context(_replaced(model, name, function))
        yield attached


@contextmanager
def _replaced(model: PreTrainedModel, name: str, function: Any) -> Iterator[None]:
    """A method of this one model, replaced inside the block."""
    own = model.__dict__.get(name)
    setattr(model, name, function)
    try:
        yield
    finally:
        delattr(model, name)
        if own is not None:
            setattr(model, name, own)


def _check_model(model: PreTrainedModel) -> None:
    if not model.can_generate():
        raise ModelError(f"attach: {type(model).__name__} has no generate; load a causal language model.")
    if model.training:
        raise ModelError("attach: the model is in training mode; call model.eval() first.")
    if len({parameter.device for parameter in model.parameters()}) > 1:
        raise ModelError("attach: the model is spread over several devices; put it on one.")
    if getattr(model, "_compiled_call_impl", None) is not None:
        raise ModelError("attach: the model is compiled; attach to it before model.compile().")


def _real_tokens(input_ids: Tensor, mask: Tensor | None) -> list[list[int]]:
    """Each row's tokens without the padding on its left."""
    rows: Sequence[list[int]] = input_ids.tolist()
    if mask is None:
        return list(rows)
    if mask.shape != input_ids.shape:
        raise ModelError(f"attach: attention_mask {tuple(mask.shape)} doesn't fit input_ids {tuple(input_ids.shape)}.")
    real = mask.bool()
    if not real[:, -1].all() or (real[:, :-1] & ~real[:, 1:]).any():
        raise ModelError("attach: the attention mask has gaps or padding on the right; pad on the left.")
    return [row[-count:] for row, count in zip(rows, real.sum(1).tolist(), strict=True)]
