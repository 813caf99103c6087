"""Sums over problems, counts behind means, values by layer and stored checks, against numbers worked out by hand."""

import pytest

from db.diagnostic_detail import layer_means, measured_counts
from db.differences import problem_differences
from db.occlusion import KIND, occlusion_checks
from db.rows import DiagnosticRow


def test_differences_are_of_problems(writer, make_sample):
    """A problem's repeats are averaged first; what failed on either side counts on neither."""
    here = {("1", 0): 1.0, ("1", 1): 0.0, ("2", 0): 1.0, ("3", 0): 0.0, ("4", 0): 1.0}
    there = {("1", 0): 1.0, ("1", 1): 1.0, ("2", 0): 0.0, ("3", 0): 1.0, ("5", 0): 1.0}
    for name, scores in (("a", here), ("b", there)):
        rows = [
            make_sample(name, problem, repeat, "correct" if score else "wrong", score=score)
            for (problem, repeat), score in scores.items()
        ]
        writer.record(rows)
    writer.record([make_sample("a", "6", outcome="failed"), make_sample("b", "6")])
    found = problem_differences(writer.engine, "b", ["a", "nothing"])
    assert list(found) == ["a"]
    each = found["a"]
    assert (each.problems, each.gained, each.lost, each.partial) == (3, 1, 1, 1)
    assert (each.total, each.squares) == (pytest.approx(-0.5), pytest.approx(2.25))
    assert problem_differences(writer.engine, "b", []) == {}


def test_how_many_samples_a_number_is_of(writer, make_sample):
    writer.record([make_sample(problem=str(i)) for i in range(3)])
    writer.record_diagnostics(
        [
            DiagnosticRow(fingerprint="a", problem_id="0", repeat=0, steps=20, kl=0.1, recall=1.0),
            DiagnosticRow(fingerprint="a", problem_id="1", repeat=0, steps=90, kl=0.2, fmm_acc=0.3, lir_eligible=4),
        ]
    )
    counts = measured_counts(writer.engine, "s", ["a", "b"])
    assert list(counts) == ["a"]
    wanted = {"kl": 2, "recall": 1, "fmm_acc": 1, "lir": 1, "first_divergent": 0}
    assert {name: counts["a"][name] for name in wanted} == wanted


def test_layers_are_averaged_over_samples(writer, make_sample):
    writer.record([make_sample(problem=str(i)) for i in range(3)])
    layers = [{"recall": [1.0, 0.5]}, {"recall": [0.0, None], "churn": [0.25, 0.75]}, {}]
    writer.record_diagnostics(
        [
            DiagnosticRow(fingerprint="a", problem_id=str(i), repeat=0, steps=20, detail={"layers": each})
            for i, each in enumerate(layers)
        ]
    )
    found = layer_means(writer.engine, ["a", "b"])
    assert list(found) == ["a"]
    assert found["a"].samples == 3
    assert found["a"].layers == {"recall": (0.5, 0.5), "churn": (0.25, 0.75)}
    assert layer_means(writer.engine, ["a"], samples=1)["a"].layers == {"recall": (1.0, 0.5)}


def test_checks_of_scorers_come_back_the_newest_first(writer):
    data = {
        "window": 32,
        "stride": 16,
        "answer": "here",
        "chains": ["1"],
        "values": {"x": [0.5]},
        "refused": {"y": "no"},
    }
    for window in (32, 64):
        writer.event("s", KIND, "checked", fingerprint="a", data={**data, "window": window})
    writer.event("s", "cell", "something else", fingerprint="a")
    newest, oldest = occlusion_checks(writer.engine, "s")
    assert (newest.window, oldest.window) == (64, 32)
    assert (newest.model, newest.values["x"], newest.refused) == ("m", (0.5,), {"y": "no"})
    assert occlusion_checks(writer.engine, "other") == []
