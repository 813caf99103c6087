"""Train the reasoner from scratch: `python -m reasoner.train --seed 1 --out DIR`.

One run of two phases. The learning rate is constant while the circuits form and the programs grow,
then falls linearly, which takes the accuracy of a token from 99.5% to where a chain of 400 tokens
comes out whole. One core is best: two runs side by side learn more than one run on two cores.

The run is restartable: called again with the same arguments it continues from DIR/checkpoint.pt.
With `--steps` the schedule counts steps and the run is reproducible bit for bit on one machine;
without it, the schedule follows `--budget-minutes` of processor time, restarts included.
"""

import argparse
import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import GenerationConfig

from reasoner.curriculum import (
    ENTRY_TOKENS,
    PROMOTE_AT,
    RESULT_SLOT,
    STAGES,
    Batch,
    draw_batch,
)
from reasoner.muon import build_optimizers, set_rate
from reasoner.net import Net, to_llama
from reasoner.tokenizer import save_tokenizer

WARMUP_STEPS = 60
CONSTANT_SHARE = 0.5  # of the run; the rest is the decay
FINAL_RATE = 0.01
RESULT_WEIGHT = 3.0  # of the sum's token in the loss
RESULT_LEARNED = 0.95  # then every token weighs the same


@dataclass
class Progress:
    """Everything about a run that is not a weight; stored in the checkpoint."""

    step: int = 0
    stage: int = 0
    trained_s: float = 0.0  # of processor time, so that a busy machine shortens nothing
    tokens: int = 0
    hits: dict[str, float] = field(default_factory=dict)  # moving averages, by kind of token

    def observe(self, kind: str, accuracy: float) -> None:
        """Fold the accuracy of one batch into the moving average of `kind`."""
        self.hits[kind] = 0.95 * self.hits.get(kind, 0.0) + 0.05 * accuracy


@dataclass(frozen=True)
class Run:
    """The arguments of a run."""

    seed: int
    out: Path
    budget_s: float
    steps: int | None = None
    tokens_per_step: int = 4000

    def done(self, progress: Progress) -> float:
        """Share of the run that is behind, in [0, 1]."""
        if self.steps is not None:
            return progress.step / self.steps
        return min(1.0, progress.trained_s / self.budget_s)


class Trainer:
    """Owns the network, its optimisers and the progress of one run."""

    def __init__(self, run: Run) -> None:
        torch.manual_seed(run.seed)
        self.run, self.net, self.progress = run, Net(), Progress()
        self.optimizers = build_optimizers(self.net)
        self.checkpoint = run.out / "checkpoint.pt"
        if self.checkpoint.exists():
            self.restore()

    def step(self) -> float:
        """One optimiser step; returns the loss."""
        start, p = time.process_time(), self.progress
        batch = draw_batch(self.run.seed, p.step, p.stage, self.run.tokens_per_step)
        set_rate(self.optimizers, rate(p.step, self.run.done(p)))
        logits = self.net(batch.ids[:, :-1], batch.positions[:, :-1], batch.first - 1)
        target = batch.ids[:, batch.first :]
        weight = self.token_weights(batch, target.size(1))
        losses = F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="none")
        loss = (losses.view_as(target) * weight).mean() / weight.mean()
        self.net.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        for optimizer in self.optimizers:
            optimizer.step()
        self.observe(batch, logits.argmax(-1) == target)
        p.step += 1
        p.tokens += batch.ids.numel()
        p.trained_s += time.process_time() - start
        return loss.item()

    def token_weights(self, batch: Batch, chain_tokens: int) -> Tensor:
        """Loss weights [chain_tokens]: the sum counts more for as long as it is not learned."""
        weights = torch.ones(chain_tokens)
        if self.progress.hits.get(f"{batch.difficulty} sum", 0.0) < RESULT_LEARNED:
            period = ENTRY_TOKENS[batch.difficulty]
            slots = slice(RESULT_SLOT[batch.difficulty], batch.entries * period, period)
            weights[slots] = RESULT_WEIGHT
        return weights

    def observe(self, batch: Batch, right: Tensor) -> None:
        """Track accuracies by slot; right: [batch, chain_tokens]. Promote the stage when due."""
        p, period = self.progress, ENTRY_TOKENS[batch.difficulty]
        entries = right[:, : batch.entries * period].reshape(len(right), batch.entries, period)
        by_slot = entries.float().mean(dim=(0, 1)).tolist()
        named = {"operand": by_slot[1], "value": by_slot[2], "second": by_slot[4]}
        named["sum"] = by_slot[RESULT_SLOT[batch.difficulty]]
        for kind, accuracy in named.items():
            p.observe(f"{batch.difficulty} {kind}", accuracy)
        p.observe("program", float(right.all(dim=1).float().mean()))
        p.observe("gate", sum(named.values()) / len(named))
        if p.stage + 1 < len(STAGES) and p.hits["gate"] > PROMOTE_AT:
            p.stage += 1
            p.hits["gate"] = 0.0  # the average starts anew: some twenty steps at least per stage

    def save(self) -> None:
        """Write the checkpoint; a killed writer leaves the previous one in place."""
        state = {
            "net": self.net.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "progress": vars(self.progress),
        }
        self.run.out.mkdir(parents=True, exist_ok=True)
        fresh = self.checkpoint.with_suffix(".tmp")
        torch.save(state, fresh)
        os.replace(fresh, self.checkpoint)

    def restore(self) -> None:
        """Continue from the checkpoint."""
        state: dict[str, Any] = torch.load(self.checkpoint, weights_only=True)
        self.net.load_state_dict(state["net"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.progress = Progress(**state["progress"])

    def export(self) -> None:
        """Write the transformers model and its tokenizer."""
        model = to_llama(self.net)
        model.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
            do_sample=False, max_new_tokens=512, pad_token_id=0, bos_token_id=1, eos_token_id=2
        )
        model.save_pretrained(self.run.out)
        save_tokenizer(self.run.out)


def rate(step: int, done: float) -> float:
    """Learning rate as a factor of its peak: warm-up, constant, linear decay."""
    if done < CONSTANT_SHARE:
        return min(1.0, (step + 1) / WARMUP_STEPS)
    left = (1 - done) / (1 - CONSTANT_SHARE)
    return FINAL_RATE + (1 - FINAL_RATE) * left


def train(run: Run, log_every: int = 25, save_every: int = 100) -> Progress:
    """Run to the end, or continue a run that was interrupted, and export the model."""
    trainer = Trainer(run)
    p = trainer.progress
    while run.done(p) < 1:
        loss = trainer.step()
        if p.step % log_every == 0:
            report(p, loss)
        if p.step % save_every == 0:
            trainer.save()
    trainer.save()
    trainer.export()
    return p


def report(p: Progress, loss: float) -> None:
    """One line of JSON about the run so far."""
    line: dict[str, Any] = {"step": p.step, "s": round(p.trained_s), "stage": p.stage}
    line |= {"tokens": p.tokens, "loss": round(loss, 4)}
    print(json.dumps(line | {kind: round(hit, 3) for kind, hit in p.hits.items()}), flush=True)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Train the reasoner from scratch.")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True, help="model folder, checkpoint included")
    parser.add_argument("--budget-minutes", type=float, default=27.0)
    parser.add_argument("--steps", type=int, help="length in steps instead of minutes")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    budget_s = 60 * arguments.budget_minutes
    train(Run(arguments.seed, arguments.out, budget_s, arguments.steps))


if __name__ == "__main__":
    main()
