"""A run that was interrupted ends where an uninterrupted one ends, and exports what it trained."""

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from reasoner.curriculum import draw_batch
from reasoner.train import Run, Trainer, train


def run_in(folder: Path) -> Run:
    return Run(seed=5, out=folder, budget_s=60.0, steps=3, tokens_per_step=400)


def test_resumed_run_reaches_the_same_loss(tmp_path: Path) -> None:
    whole = Trainer(run_in(tmp_path / "whole"))
    losses = [whole.step() for _ in range(3)]
    broken = Trainer(run_in(tmp_path / "broken"))
    assert [broken.step(), broken.step()] == losses[:2]
    broken.save()
    resumed = Trainer(run_in(tmp_path / "broken"))
    assert resumed.progress.step == 2
    assert resumed.step() == losses[2]


def test_export_computes_what_was_trained(tmp_path: Path) -> None:
    progress = train(run_in(tmp_path))
    assert progress.step == 3
    net = Trainer(run_in(tmp_path)).net
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    batch = draw_batch(1, 0, 0, 300)
    with torch.no_grad():
        ours = net(batch.ids, batch.positions)
        theirs = model(batch.ids, position_ids=batch.positions).logits
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
