"""Prompts of new rows: run through the model in a cache of their own, then taken over by the running one."""

from collections.abc import Sequence

import torch
from torch import Tensor

from tiercache import hf
from tiercache.cache import TieredCache
from tiercache.model import LoadedModel
from tiercache.prefill_step import PrefillStep

SHORT = 64  # tokens: below this, another forward pass costs more than padding
PASS = 1024  # tokens of one forward pass: with more, nothing gets faster and activations take memory


def prefill(
    loaded: LoadedModel, cache: TieredCache, prompts: Sequence[Sequence[int]], seeds: Sequence[int], limit: int
) -> Tensor:
    """Runs new rows' prompts through the model, `limit` tokens of each at a time; then the policy may act.

    Equal prompts, as repeats of a problem have, are run once. The rows follow those that the cache has, in this order.

    Returns:
        the hidden state at each row's last prompt token, [rows, hidden].
    """
    staged = cache.staging()
    rows, last = stage(loaded, staged, prompts, seeds, limit)
    cache.adopt(staged, rows)
    cache.traffic.add(staged.traffic)
    return last


def stage(
    loaded: LoadedModel, staged: TieredCache, prompts: Sequence[Sequence[int]], seeds: Sequence[int], limit: int
) -> tuple[list[int], Tensor]:
    """`prefill` into an empty cache: each prompt's row there, and its last hidden state, [prompts, hidden]."""
    # Longest first: rows whose prompt has ended are then a suffix that later chunks leave out. Repeats come last.
    keys = [tuple(prompt) for prompt in prompts]
    first = {key: i for i, key in reversed(list(enumerate(keys)))}
    own = sorted(first.values(), key=lambda i: (-len(keys[i]), i))
    staged_row = {i: row for row, i in enumerate(own)}
    repeats = [i for i in range(len(keys)) if i not in staged_row]
    arranged = own + repeats
    staged.join([len(keys[i]) for i in arranged], [seeds[i] for i in arranged])
    last = _forward(loaded, staged, [keys[i] for i in own], limit)
    for row, i in enumerate(repeats, start=len(own)):
        staged.copy_prompt(staged_row[first[keys[i]]], row)
    staged.fill(slice(0, len(arranged)))
    place = {i: row for row, i in enumerate(arranged)}
    return [place[i] for i in range(len(keys))], last[[staged_row[first[key]] for key in keys]]


def by_length(prompts: Sequence[Sequence[int]], limit: int) -> list[list[int]]:
    """The prompts' indices in groups to be prefilled together, longest first.

    None is padded to twice its length, and what goes through the model at once, `limit` tokens of each prompt at most,
    stays about what a processor's caches hold. Repeats of a prompt are run once, so they count once and stay together.
    """
    groups: list[list[int]] = []
    distinct = 0  # prompts of the last group
    for i in sorted(range(len(prompts)), key=lambda i: (-len(prompts[i]), tuple(prompts[i]))):
        if groups and tuple(prompts[i]) == tuple(prompts[groups[-1][-1]]):
            groups[-1].append(i)
            continue
        longest = len(prompts[groups[-1][0]]) if groups else 0
        room = (distinct + 1) * min(longest, limit) <= PASS
        if groups and room and longest < 2 * max(len(prompts[i]), SHORT):
            groups[-1].append(i)
            distinct += 1
        else:
            groups.append([i])
            distinct = 1
    return groups


def _forward(loaded: LoadedModel, cache: TieredCache, prompts: Sequence[Sequence[int]], limit: int) -> Tensor:
    """The first rows' prompts, longest first; last hidden states [rows, hidden]."""
    lengths = [len(prompt) for prompt in prompts]
    last: list[Tensor | None] = [None] * len(prompts)
    for start in range(0, lengths[0], limit):
        active = sum(1 for length in lengths if length > start)
        chunk = min(limit, lengths[0] - start)
        tokens = torch.zeros(active, chunk, dtype=torch.long)
        for i in range(active):
            part = prompts[i][start : start + chunk]
            tokens[i, : len(part)] = torch.tensor(part)
        step = PrefillStep(cache, slice(0, active), start, lengths[:active], chunk)
        positions = torch.arange(start, start + chunk, device=loaded.device).unsqueeze(0)
        hidden = hf.hidden_states(loaded.model, tokens.to(loaded.device), positions, step)
        step.finish()
        for i in range(active):
            if start < lengths[i] <= start + chunk:
                last[i] = hidden[i, lengths[i] - 1 - start]
    return torch.stack([state for state in last if state is not None])
