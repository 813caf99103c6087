"""What the advice says follows from the samples, names its cells, and says what it can't know."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from markdown_it import MarkdownIt
from typer.testing import CliRunner

from db.connection import open_engine
from db.queries import cell_summaries
from db.rows import CellRow, SampleRow
from db.writer import Writer
from jobs.advice import Answer, Question, Share, advice_markdown, answer, room, sentences, settings
from jobs.advice.budgets import policy_of, size_of
from jobs.commands.advising import advise
from tiercache.capacity import capacity
from tiercache.errors import PolicyError, SpecError
from tiercache.policy_text import read_policy

TOKEN = 1536
SEVEN = "DeepSeek-R1-Distill-Qwen-7B"
# label: (share of problems right, share of the full cache's bytes on the device, share of tokens kept, on the host)
POLICIES: dict[str, tuple[float, float, float, float]] = {
    "full": (0.9, 1.0, 1.0, 0.0),
    "hierarchy evict=0 hbm=0.3": (0.9, 0.45, 1.0, 0.55),
    "hierarchy evict=0 hbm=0.7": (0.9, 0.8, 1.0, 0.2),
    "hierarchy evict=0.1 hbm=0.3": (0.3, 0.4, 0.6, 0.2),
    "streaming budget=0.5": (0.1, 0.5, 0.5, 0.0),
    "h2o budget=0.9": (0.885, 0.9, 0.9, 0.0),
}


def rows(fingerprint: str, right: float, device: float, kept: float, host: float, n: int) -> list[SampleRow]:
    """The first problems are right: of two policies the better one is right wherever the other is."""
    return [
        SampleRow(
            fingerprint=fingerprint,
            problem_id=f"{problem:05d}",
            repeat=0,
            seed=1,
            outcome="correct" if problem < round(right * n) else "truncated" if problem % 2 else "wrong",
            score=float(problem < round(right * n)),
            finish_reason="eos",
            prompt="PROMPT",
            output="OUTPUT",
            reference="7",
            output_tokens=200,
            hbm_tokens=round(1000 * (kept - host)),
            ddr_tokens=round(1000 * host),
            packed_tokens=0,
            evicted_tokens=1000 - round(1000 * kept),
            hbm_bytes_mean=device * 1000 * TOKEN,
            ddr_bytes_mean=host * 1000 * TOKEN,
            packed_bytes_mean=0.0,
            full_bytes_mean=1000.0 * TOKEN,
        )
        for problem in range(n)
    ]


def fill(
    url: str,
    n: int,
    policies: Mapping[str, tuple[float, float, float, float]] = POLICIES,
    model: str = "reasoner",
    sweep: str = "s",
) -> str:
    cells = [
        CellRow(
            fingerprint=f"{model}-{label}"[:60],
            model=model,
            benchmark="chain",
            policy=label,
            policy_name=label.split()[0],
            config={},
            protocol="protocol1",
            kv_bytes_per_token=TOKEN,
            expected_samples=n,
        )
        for label in policies
    ]
    with Writer.open(url) as writer:
        writer.register_sweep(sweep, sweep, {"repeats": 1}, {}, cells)
        for cell in cells:
            writer.record(rows(cell.fingerprint, *policies[cell.policy], n))
    return url


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'r.db'}"


def ask(url: str, budget: Any = None, loss: float = 0.02) -> Answer:
    engine = open_engine(url, read_only=True)
    (setting,) = settings(engine, cell_summaries(engine))
    return answer(setting, Question(budget or Share(0.5), loss))


def said(found: Answer) -> dict[str, list[str]]:
    texts: dict[str, list[str]] = {}
    for each in sentences(found):
        texts.setdefault(each.kind, []).append(each.text)
    return texts


def verdicts(found: Answer) -> dict[str, str]:
    return {each.cell.policy: each.verdict for each in found.candidates}


def test_what_holds_is_used_and_what_falls_is_avoided(url: str) -> None:
    found = ask(fill(url, 500))
    assert verdicts(found) == {
        "hierarchy evict=0.1 hbm=0.3": "loses more",
        "hierarchy evict=0 hbm=0.3": "holds",
        "streaming budget=0.5": "loses more",
        "hierarchy evict=0 hbm=0.7": "too large",
        "h2o budget=0.9": "too large",
    }
    texts = said(found)
    (use,) = texts["use"]
    assert use.startswith("Use “hierarchy evict=0 hbm=0.3”: it holds 45.0% of the full cache (675 KiB)")
    assert "It loses 0.0 points [-0.8, 0.8] (n = 500, and no verdict differs" in use
    assert "It needs 825 KiB of host memory a sequence" in use
    worst, cliff = texts["avoid"]
    assert worst.startswith("Don't use “streaming budget=0.5”: with 50.0% of the full cache")
    assert "it loses 80.0 points [76.3, 83.3] (n = 500; p < 0.001 by Holm): 45% wrong, 45% cut off" in worst
    assert "There is a cliff: “hierarchy evict=0 hbm=0.3” keeps the accuracy" in cliff
    assert "5 other policies 3 fit 50% of the full cache's device bytes" in texts["measured"][0]
    assert "a million parameters" in texts["scale"][0]


def test_every_sentence_names_cells_that_exist(url: str) -> None:
    found = ask(fill(url, 300), Share(1.0))
    known = {each.cell.fingerprint for each in found.candidates} | {"reasoner-full"}
    for each in sentences(found):
        assert each.cells
        assert set(each.cells) <= known


def test_few_problems_decide_nothing_and_say_how_many_would(url: str) -> None:
    found = ask(fill(url, 30, {label: POLICIES[label] for label in ("full", "hierarchy evict=0 hbm=0.3")}))
    assert verdicts(found) == {"hierarchy evict=0 hbm=0.3": "open"}
    texts = said(found)
    assert "use" not in texts
    assert "No policy measured here is shown to keep the accuracy" in texts["beyond"][0]
    assert "can't be decided" in texts["open"][0]
    (each,) = found.candidates
    assert each.needed is not None
    assert each.needed > 30
    assert f"about {each.needed:,} problems would decide" in texts["open"][0]


def test_no_loss_that_was_seen_is_not_enough(url: str) -> None:
    """A point estimate within the tolerance doesn't hold if its interval leaves it."""
    found = ask(fill(url, 200), Share(1.0))
    h2o = next(each for each in found.candidates if each.cell.policy == "h2o budget=0.9")
    assert h2o.margin is not None
    assert -h2o.margin.difference < 0.02
    assert h2o.verdict == "open"


def test_nothing_within_the_budget_names_the_smallest_beyond_it(url: str) -> None:
    texts = said(ask(fill(url, 500), Share(0.42)))
    assert texts["beyond"][0].startswith("None within 42% of the full cache's device bytes is shown")
    assert "“hierarchy evict=0 hbm=0.3”, with 45.0%" in texts["beyond"][0]


def test_holm_is_over_what_the_budget_admits(url: str) -> None:
    """One candidate alone has its own p; the same among others has a larger one."""
    alone = ask(fill(url, 500), Share(0.46))
    among = ask(url, Share(1.0))
    p = [
        each.p_holds
        for found in (alone, among)
        for each in found.candidates
        if each.cell.policy == "hierarchy evict=0 hbm=0.3"
    ]
    assert p[0] is not None
    assert p[1] is not None
    assert p[0] < p[1]


def test_a_full_cache_at_the_floor_decides_nothing(url: str) -> None:
    found = ask(fill(url, 300, {"full": (0.01, 1.0, 1.0, 0.0), "streaming budget=0.5": (0.0, 0.5, 0.5, 0.0)}))
    assert verdicts(found) == {"streaming budget=0.5": "not known"}
    assert "solves next to nothing" in said(found)["open"][0]


def test_without_a_full_cache_or_samples(url: str) -> None:
    fill(url, 20, {"streaming budget=0.5": (0.1, 0.5, 0.5, 0.0)})
    found = ask(url)
    assert verdicts(found) == {"streaming budget=0.5": "not known"}
    assert "the full cache was not run" in said(found)["measured"][0]
    with pytest.raises(SpecError, match="no judged samples"):
        advice_markdown(open_engine(url, read_only=True), ["s"], url)


# Bytes on a GPU


def test_a_room_is_planned_by_the_capacity_model(url: str) -> None:
    budget = room(8 * 2**30, SEVEN, 8192, 512, 16)
    found = ask(fill(url, 500), budget)
    each = next(each for each in found.candidates if each.cell.policy == "hierarchy evict=0 hbm=0.3")
    planned = capacity(budget.shape, read_policy(each.cell.policy), 8192, prompt=512)
    assert each.size.device == 16 * planned.row
    assert each.size.host == 16 * planned.t1
    texts = said(found)
    assert any("No policy was measured on DeepSeek-R1-Distill-Qwen-7B" in text for text in texts["measured"])
    assert any("The full cache of these rows would take 7.00 GiB: it fits" in text for text in texts["measured"])
    assert texts["use"][0].startswith("Try “hierarchy evict=0 hbm=0.3”"), "a stranger's numbers are no order to use it"


def test_a_ratio_that_compounds_is_not_what_was_measured(url: str) -> None:
    """At 32,768 tokens an eviction ratio leaves a far smaller share than on short texts: no loss is carried over."""
    policies = {"full": POLICIES["full"], "hierarchy evict=0.03 hbm=0.5": (0.9, 0.6, 0.9, 0.3)}
    fill(url, 500, policies)
    near = ask(url, Share(0.7))
    assert verdicts(near) == {"hierarchy evict=0.03 hbm=0.5": "holds"}
    far = ask(url, room(2**40, "reasoner", 32768, 512, 1))
    assert verdicts(far) == {"hierarchy evict=0.03 hbm=0.5": "open"}
    assert "90% where it was measured" in said(far)["open"][0]


def test_a_budget_too_small_for_all(url: str) -> None:
    found = ask(fill(url, 50), room(1, SEVEN, 4096, 512, 1))
    assert set(verdicts(found).values()) == {"too large"}


def test_a_label_never_runs_a_file(tmp_path: Path, url: str) -> None:
    evil = tmp_path / "evil.py"
    evil.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    label = f"h2o budget=0.5 scorer={evil}:Scorer"
    with pytest.raises(PolicyError, match="a user's own"):
        policy_of(label)
    found = ask(
        fill(url, 50, {"full": POLICIES["full"], label: (0.9, 0.5, 0.5, 0.0)}), room(2**40, SEVEN, 4096, 512, 1)
    )
    assert verdicts(found) == {label: "not known"}
    assert not (tmp_path / "ran").exists()


def test_bytes_that_were_not_measured_are_not_assumed(url: str) -> None:
    fill(url, 40)
    engine = open_engine(url, read_only=True)
    cell = next(cell for cell in cell_summaries(engine) if cell.policy_name == "h2o")
    bare = size_of(replace(cell, hbm_bytes=None), Share(0.9))
    assert (bare.fits, bare.device, bare.why) == (None, None, "no bytes were measured")


# The page and the command


def page(url: str, *sweeps: str) -> str:
    return advice_markdown(open_engine(url, read_only=True), sweeps or ("s",), "sqlite:///r.db")


def test_the_page_follows_the_samples(tmp_path: Path) -> None:
    better = {**POLICIES, "streaming budget=0.5": (0.9, 0.5, 0.5, 0.0)}
    made = [fill(f"sqlite:///{tmp_path}/{name}.db", 500, each) for name, each in (("a", POLICIES), ("b", better))]
    first, other = map(page, made)
    assert "Don't use “streaming budget=0.5”" in first
    assert "Don't use “streaming budget=0.5”" not in other
    assert "“streaming budget=0.5” does as well with 50.0%" in other.replace("\\", "")
    assert first == page(made[0])
    assert "tiercache advise s --model reasoner" in first
    assert "--db sqlite:///r.db" in first
    assert first.endswith("\n")


def test_shared_cells_count_once_and_settings_stay_apart(url: str) -> None:
    fill(url, 100)
    fill(url, 100, sweep="again")
    fill(url, 100, model="other", sweep="third")
    text = page(url, "s", "again", "third")
    assert text.count("## ") - text.count("### ") == 2
    assert "Of 5 other policies" in text
    assert text.count("a million parameters") == 1, "said of the embedded reasoner alone"


def test_hostile_names_stay_text(url: str) -> None:
    evil = "h2o <script>alert(1)</script> | `x` ![y](z)"
    text = page(fill(url, 40, {"full": POLICIES["full"], evil: (0.1, 0.5, 0.5, 0.0)}, model=evil[4:40]))
    tokens = MarkdownIt().enable("table").parse(text)
    kinds = {child.type for token in tokens for child in token.children or ()} | {token.type for token in tokens}
    assert not {"image", "link_open", "html_inline", "html_block"} & kinds


@pytest.fixture
def command(url: str) -> Callable[..., Any]:
    app = typer.Typer()
    app.command()(advise)
    return lambda *arguments: CliRunner().invoke(app, [*arguments, "--db", url])


def test_the_command_says_what_the_page_says(url: str, command: Callable[..., Any]) -> None:
    fill(url, 500)
    done = command("latest", "--budget", "0.5")
    assert done.exit_code == 0, done.output
    assert "Use “hierarchy evict=0 hbm=0.3”" in done.output
    plain = json.loads(command("all", "--budget", "0.5", "--json").output)
    assert [each["policy"] for each in plain[0]["candidates"] if each["verdict"] == "holds"] == [
        "hierarchy evict=0 hbm=0.3"
    ]
    assert plain[0]["full"]["accuracy"] == 0.9
    assert "--loss 2" in plain[0]["command"]
    assert plain[0]["sentences"][0]["cells"] == ["reasoner-full"]


def test_the_command_refuses_nonsense(url: str, command: Callable[..., Any]) -> None:
    fill(url, 20)
    assert "between 0 and 100" in str(command("latest", "--budget", "0.5", "--loss", "0").exception)
    assert "no cell of these sweeps" in str(command("latest", "--budget", "0.5", "--model", "nope").exception)
    assert "no sweep 'lates'" in str(command("lates", "--budget", "0.5").exception)
