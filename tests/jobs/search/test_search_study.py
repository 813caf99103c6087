"""The whole search with a made-up model: constraint, resume, held-out report. No Ray."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cluster.fake import Script
from db.connection import open_engine
from db.queries import list_sweeps
from jobs.search.objective import Stored, Unfinished
from jobs.search.report import page, search_markdown
from jobs.search.spec import Search, load_benchmarks, parse_search
from jobs.search.study import Outcome, conduct
from jobs.search.trials import Tried
from jobs.search.verdict import judge
from jobs.statistics import pass_at_1

Make = Callable[..., tuple[Any, Any]]  # what measures, and its pool
Data = dict[str, Any]


def tried(outcome: Outcome) -> list[tuple[str, str, float | None]]:
    return [(each.label, each.state, each.measured.accuracy if each.measured else None) for each in outcome.trials]


def ran(outcome: Outcome) -> list[Tried]:
    return [each for each in outcome.trials if each.state == "measured"]


def test_trials_keep_to_the_budget_and_are_run_once(search: Search, url: str, computed: Make) -> None:
    measure, pool = computed(search, url)
    outcome = conduct(search, measure)
    assert len(ran(outcome)) == search.trials == 9
    assert len({each.label for each in ran(outcome)}) == 9
    for each in (*ran(outcome), *outcome.rivals):
        assert each.measured is not None
        assert each.planned == pytest.approx(each.measured.held(True))  # the made-up ledger is the planner's
        assert each.measured.held(True) <= search.budget.bytes
    held_out = 1 + len({each.label for each in (*outcome.chosen, *outcome.best_rivals)})
    policies = 1 + len(outcome.rivals) + 9
    assert pool.asked == policies * 12 + held_out * 20
    assert [each.name.split(": ")[1] for each in reversed(list_sweeps(open_engine(url, read_only=True)))] == [
        "full cache",
        "presets",
        "round 1",
        "round 2",
        "round 3",
        "held out",
    ]


def test_screening_gives_up_what_cannot_win(data: Data, url: str, computed: Make) -> None:
    screened = parse_search({**data, "trials": 18, "batch": 6, "search": {"n": 40, "screen": 12}, "report": {"n": 20}})
    measure, pool = computed(screened, url)
    outcome = conduct(screened, measure)
    given_up = [each for each in outcome.trials if each.state == "screened"]
    assert given_up
    assert len(given_up) + len(ran(outcome)) == 18
    best = max(each.measured.accuracy for each in (*ran(outcome), *outcome.rivals) if each.measured)
    for each in given_up:
        assert each.measured is not None
        assert each.measured.expected == len(each.measured.samples) == 12
        assert not each.measured.accuracy or pass_at_1(each.measured.scores).high < best
        assert each.label not in {chosen.label for chosen in outcome.chosen}
    held_out = 1 + len({each.label for each in (*outcome.chosen, *outcome.best_rivals)})
    # A trial's first problems are run once: those that go on have them already.
    assert pool.asked == 40 * (1 + len(outcome.rivals) + len(ran(outcome))) + 12 * len(given_up) + 20 * held_out
    assert f"{len(given_up)} were given up after 12 problems" in page(outcome)


def test_what_exceeds_the_budget_is_not_chosen(
    search: Search, url: str, computed: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plans that are too small, as where a policy makes the model write on and on: what was measured decides."""
    from jobs.search import fitting

    monkeypatch.setattr(fitting, "MARGIN", -0.5)
    outcome = conduct(search, computed(search, url)[0])
    too_large = [each for each in ran(outcome) if each.measured and each.measured.held(True) > search.budget.bytes]
    assert too_large
    assert not {each.label for each in too_large} & {each.label for each in outcome.chosen}
    assert "above the budget" in page(outcome)


def test_a_killed_search_goes_on_and_ends_the_same(search: Search, url: str, computed: Make, tmp_path: Path) -> None:
    other = f"sqlite:///{tmp_path / 'undisturbed.db'}"
    undisturbed = conduct(search, computed(search, other)[0])
    asked = 0
    for stop_after in (20, 45, 30, 10**6):
        measure, pool = computed(search, url)
        pool.stop_after = stop_after
        try:
            outcome = conduct(search, measure)
        except KeyboardInterrupt:
            assert stop_after < 10**6
        asked += pool.asked
    assert tried(outcome) == tried(undisturbed)
    assert page(outcome) == page(undisturbed)
    idle, pool = computed(search, url)
    assert page(conduct(search, idle)) == page(undisturbed)
    assert pool.asked == 0
    assert idle.computed == 0


def test_more_trials_go_on_with_the_same_search(data: Data, search: Search, url: str, computed: Make) -> None:
    shorter = parse_search({**data, "trials": 6})
    first = tried(conduct(shorter, computed(shorter, url)[0]))
    longer = tried(conduct(search, computed(search, url)[0]))
    assert longer[: len(first)] == first
    assert len(longer) > len(first)


def test_another_seed_searches_elsewhere(data: Data, search: Search, url: str, computed: Make) -> None:
    first = conduct(search, computed(search, url)[0])
    reseeded = parse_search({**data, "seed": 1})
    assert tried(conduct(reseeded, computed(reseeded, url)[0])) != tried(first)


def test_the_report_is_read_from_the_database(search: Search, url: str, computed: Make) -> None:
    measure, _ = computed(search, url)
    outcome = conduct(search, measure)
    assert search_markdown(open_engine(url, read_only=True), search) == page(outcome)
    text = page(outcome)
    best = outcome.chosen[0]
    assert best.measured is not None
    assert best.measured.accuracy == max(each.measured.accuracy for each in ran(outcome) if each.measured)
    winner = outcome.held_out[best.label]
    assert f"| `{best.label}` | {100 * winner.accuracy:.1f} [" in text
    assert {sample.problem_id[-6:] for sample in winner.samples} == {f"{i:06d}" for i in range(12, 32)}
    assert "Problems 0 to 11 are for searching, 12 to 31 are held out." in text
    assert len(re.findall(r"^\| \d+ \| `", text, re.M)) == 9


def test_a_search_that_has_not_run_is_unfinished(search: Search, url: str, computed: Make) -> None:
    with pytest.raises(Unfinished, match="full cache"):
        conduct(search, Stored(search, load_benchmarks(search), url))


def test_failed_samples_keep_a_policy_from_being_ranked(search: Search, url: str, computed: Make) -> None:
    measure, pool = computed(search, url)
    pool.stop_after = 12 + 3 * 12  # the full cache and the presets
    with pytest.raises(KeyboardInterrupt):
        conduct(search, measure)
    key = f"{load_benchmarks(search)['search'].load()[3].id}#0"
    measure, _ = computed(search, url, Script(refuses=frozenset({key})))
    outcome = conduct(search, measure)
    incomplete = {each.label for each in outcome.trials if each.state == "incomplete"}
    assert incomplete
    assert not outcome.complete
    assert not incomplete & {each.label for each in outcome.chosen}
    assert "1 samples failed" in page(outcome)
    again = conduct(search, computed(search, url)[0])
    assert again.complete


def test_the_verdict(data: Data, url: str, computed: Make) -> None:
    larger = parse_search({**data, "report": {"n": 80, "top": 1}})
    outcome = conduct(larger, computed(larger, url)[0])
    verdict = judge(outcome)
    assert verdict.winner == outcome.chosen[0].label
    assert {each.label for each in verdict.against} == {each.label for each in outcome.best_rivals}
    for each in verdict.against:
        assert each.p_holm >= each.paired.p_value
        assert each.paired.n_problems == 80
    expected = all(each.paired.difference > 0 and each.p_holm < 0.05 for each in verdict.against)
    assert verdict.wins is expected
    assert ("It beats every preset" in page(outcome)) is expected
    strongest = verdict.strongest
    assert strongest is not None
    assert strongest.paired.baseline == max(outcome.held_out[each.label].accuracy for each in outcome.best_rivals)


def test_agreement_is_the_part_of_the_answer_before_they_depart(search: Search, url: str, computed: Make) -> None:
    measure, _ = computed(search, url)
    (full,) = measure("a", "search", [{"name": "full"}])
    name = next(iter(full.outputs))
    other = replace(full, outputs={**full.outputs, name: full.outputs[name][:3] + "x"})
    assert full.agreement(full) == 1
    assert other.agreement(full) == pytest.approx(1 - (1 - 3 / len(full.outputs[name])) / len(full.samples))


def test_no_trial_fits(data: Data, url: str, computed: Make) -> None:
    """Every proposal is planned, none is run, and it ends."""
    narrow = parse_search({**data, "budget": {"bytes": 0.02}, "trials": 2})
    outcome = conduct(narrow, computed(narrow, url)[0])
    assert not outcome.chosen
    assert {each.state for each in outcome.trials} == {"too large"}
    assert not judge(outcome).wins
    assert "nothing was found" in page(outcome)
