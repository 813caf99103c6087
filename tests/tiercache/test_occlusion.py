"""Occlusion labels against one masked pass of transformers for each window, and scores against their definition."""

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr

from tiercache.catalog import SIGNALS
from tiercache.diagnostics.occlusion import (
    OcclusionLabels,
    final_scores,
    load_labels,
    occlusion_labels,
    one_score,
    rank_correlation,
    save_labels,
)

MODEL = "llama"
PROMPT = tiny.prompts(11)[0]
CHAIN = tiny.prompts(50, seed=3)[0]
ANSWER = (41, 46)
LABELS = OcclusionLabels((41, 46), 12, 5, -2.5, ((0, 12, 0.5), (5, 17, -0.25)))


def slow_log_probability(hidden: range) -> float:
    """Transformers' own forward with a mask of its own, answer tokens one by one."""
    model, text = tiny.tiny(MODEL), [*PROMPT, *CHAIN]
    n = len(text)
    mask = torch.full((n, n), -math.inf, dtype=torch.float64)
    for query in range(n):
        for key in range(query + 1):
            if key not in hidden or query in hidden:
                mask[query, key] = 0
    model.set_attn_implementation("sdpa")
    try:
        with torch.inference_mode():
            logits = model(torch.tensor([text]), attention_mask=mask[None, None], use_cache=False).logits[0]
    finally:
        model.set_attn_implementation("tiercache")
    total = 0.0
    for i in range(*ANSWER):
        row = logits[len(PROMPT) + i - 1]
        total += float(row[CHAIN[i]]) - float(row.logsumexp(0))
    return total


def test_labels_equal_a_masked_pass_for_each_window() -> None:
    labels = occlusion_labels(tiny.loaded(MODEL), PROMPT, CHAIN, ANSWER, window=12, stride=5)
    assert [(a, b) for a, b, _ in labels.windows] == [
        (0, 12), (5, 17), (10, 22), (15, 27), (20, 32), (25, 37), (30, 41)
    ]  # fmt: skip
    everything = slow_log_probability(range(0))
    assert labels.log_probability == pytest.approx(everything, abs=1e-6)
    for start, stop, loss in labels.windows:
        slow = slow_log_probability(range(len(PROMPT) + start, len(PROMPT) + stop))
        assert loss == pytest.approx(everything - slow, abs=1e-6)
    assert len({round(loss, 6) for _, _, loss in labels.windows}) == 7
    by_token = labels.by_token()
    assert len(by_token) == ANSWER[0]
    assert by_token[0] == labels.windows[0][2]
    assert by_token[11] == pytest.approx(np.mean([loss for _, _, loss in labels.windows[:3]]))


@given(st.integers(1, 70), st.integers(1, 40), st.integers(1, 40))
@settings(max_examples=30, deadline=None)
def test_every_token_before_the_answer_is_in_a_window(first: int, window: int, stride: int) -> None:
    if stride > window:
        with pytest.raises(ValueError, match="stride"):
            occlusion_labels(tiny.loaded(MODEL), PROMPT, [1] * 80, (first, first + 2), window, stride)
        return
    labels = occlusion_labels(tiny.loaded(MODEL), PROMPT, [1] * 80, (first, first + 2), window, stride)
    covered = [i for start, stop, _ in labels.windows for i in range(start, stop)]
    assert set(covered) == set(range(first))
    assert all(0 < stop - start <= window for start, stop, _ in labels.windows)
    assert len(labels.by_token()) == first


@pytest.mark.parametrize("name", ["labels.json", "labels.parquet"])
def test_labels_survive_a_file(tmp_path: Path, name: str) -> None:
    chains = {"b": LABELS, "a": OcclusionLabels((3, 4), 32, 16, -1e-7, ((0, 3, 1 / 3),))}
    save_labels(tmp_path / name, chains)
    assert load_labels(tmp_path / name) == chains


def test_final_scores_of_known_scorers() -> None:
    n = len(PROMPT) + len(CHAIN)
    recency = final_scores(tiny.loaded(MODEL), PROMPT, CHAIN, "recency")
    assert recency.shape == (2, 2, n)
    assert torch.equal(recency, torch.arange(n, dtype=torch.float64).expand(2, 2, n))
    attention = final_scores(tiny.loaded(MODEL), PROMPT, CHAIN)
    # Each query hands out one unit to each query head of the group.
    assert torch.allclose(attention.sum(-1), torch.full((2, 2), 2.0 * n, dtype=torch.float64))


def test_scores_chunk_by_chunk() -> None:
    """LagKV sees a chunk from the one that follows, so what comes after that one is of no account."""
    whole = final_scores(tiny.loaded(MODEL), PROMPT, CHAIN, "lagkv", chunk=10)
    start = final_scores(tiny.loaded(MODEL), PROMPT, CHAIN[:29], "lagkv", chunk=10)
    assert torch.allclose(whole[..., :30], start[..., :30], atol=1e-6)
    assert (start[..., 30:40] == 0).all(), "nothing follows the last chunk"
    assert (whole[..., 30:40] > 0).all()


@pytest.mark.parametrize("name", SIGNALS)
def test_every_scorer_has_final_scores(name: str) -> None:
    chunk = 12 if name == "lagkv" else None
    scores = final_scores(tiny.loaded(MODEL), PROMPT, CHAIN, name, seed=5, chunk=chunk)
    assert scores.shape == (2, 2, len(PROMPT) + len(CHAIN))
    assert not scores.isnan().any()
    assert len(set(one_score(scores))) > 1, "a scorer tells tokens apart"


def test_one_score_is_the_mean_rank() -> None:
    scores = torch.tensor([[[1.0, 5.0, 3.0], [10.0, 10.0, 900.0]]])
    assert one_score(scores) == pytest.approx([(1 + 1.5) / 2, (3 + 1.5) / 2, (2 + 3) / 2])


@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3)), min_size=3, max_size=20))
@settings(max_examples=100, deadline=None)
def test_rank_correlation(pairs: list[tuple[int, int]]) -> None:
    a, b = ([float(x) for x in side] for side in zip(*pairs, strict=True))
    found = rank_correlation(a, b)
    if len(set(a)) < 2 or len(set(b)) < 2:
        assert math.isnan(found)
        return
    ranks = [[sum(y < x for y in side) + (1 + sum(y == x for y in side)) / 2 for x in side] for side in (a, b)]
    assert found == pytest.approx(np.corrcoef(*ranks)[0, 1])
    assert found == pytest.approx(spearmanr(a, b).statistic)


def test_rank_correlation_of_perfect_scores() -> None:
    assert rank_correlation([1, 2, 9], [0.1, 0.2, 0.3]) == pytest.approx(1)
    assert rank_correlation([3, 2, -9], [0.1, 0.2, 0.3]) == pytest.approx(-1)
    with pytest.raises(ValueError, match="3 scores"):
        rank_correlation([1, 2, 3], [1, 2])


def test_the_script_prints_a_line_for_each_scorer(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    arguments = ["--n=1", "--scorers", "recency", "random", f"--labels={tmp_path}/labels.json"]
    done = subprocess.run(
        [sys.executable, "benchmarks/occlusion_reasoner.py", *arguments],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines[2:]] == ["recency", "random"]
    assert all(-1 <= float(line.split()[1]) <= 1 for line in lines[2:])
    (labels,) = load_labels(tmp_path / "labels.json").values()
    assert (labels.window, labels.stride) == (32, 16)
    assert max(loss for _, _, loss in labels.windows) > 1, "some window holds what the answer reads"
