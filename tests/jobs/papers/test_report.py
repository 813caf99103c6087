"""`tiercache report` over made-up databases: verdicts follow the data, names stay text, other data give other pages."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from markdown_it import MarkdownIt
from typer.testing import CliRunner

from db.connection import open_engine
from db.queries import list_sweeps
from db.rows import CellRow, SampleRow
from db.writer import Writer
from jobs.commands.reporting import report
from jobs.papers.blocks import Table
from jobs.papers.render import markdown, page
from jobs.papers.report import build
from jobs.spec import load_sweep
from tiercache.errors import SpecError, TierCacheError

ROOT = Path(__file__).parents[3]
SMALL = "hierarchy_system_mini"  # five policies and no grid
Accuracy = Callable[[dict[str, Any]], float]
CUT = {0: 0.8, 0.03: 0.78, 0.05: 0.7, 0.1: 0.5}


def by_eviction(policy: dict[str, Any]) -> float:
    """What 2605.09490 claims: eviction costs, the HBM ratio doesn't."""
    return CUT[policy["placement"]["evict"]]


def by_hbm(policy: dict[str, Any]) -> float:
    return 0.8 if policy["name"] == "full" else 0.3 + 0.6 * float(policy["placement"]["hbm"])


def level(policy: dict[str, Any]) -> float:
    return 0.7


def samples(fingerprint: str, n: int, accuracy: float) -> Iterator[SampleRow]:
    """The first problems are right, and a few, others for each cell, differ."""
    for problem in range(n):
        right = problem < round(accuracy * n) if (problem * 7 + len(fingerprint)) % 29 else problem % 2 == 0
        yield SampleRow(
            fingerprint=fingerprint,
            problem_id=f"{problem:05d}",
            repeat=0,
            seed=1,
            outcome="correct" if right else "wrong",
            score=float(right),
            extracted="EXTRACTED <b>",
            finish_reason="eos",
            prompt="PROMPT",
            output="OUTPUT <script>",
            reference="7",
            hbm_bytes_mean=60.0,
            packed_bytes_mean=0.0,
            full_bytes_mean=100.0,
        )


def fill(
    url: str,
    accuracy: Accuracy,
    n: int,
    sweep: str = "hierarchy_grid_mini",
    benchmarks: tuple[str, ...] = ("chain",),
    **names: str,
) -> str:
    cells, rows = [], []
    for task in benchmarks:
        for index, policy in enumerate(load_sweep(ROOT / "sweeps" / f"{sweep}.yaml").resolved_policies()):
            config = json.loads(json.dumps(policy.config()))
            name, _, own = task.partition("/")
            cells.append(
                CellRow(
                    fingerprint=f"{task}-{index}",
                    model=names.get("model", "m"),
                    benchmark=task + names.get("benchmark", ""),
                    policy=policy.label + names.get("policy", ""),
                    policy_name=policy.name,
                    config={
                        "policy": config,
                        "benchmark": {"name": name, "task": own, "revision": "abc"},
                        "model": {"id": names.get("model", "m"), "revision": "sha256:1", "dtype": "float32"},
                        "sampling": {"temperature": 0.0, "max_new_tokens": 512},
                        "seed": 3,
                    },
                    protocol=f"p-{task}",
                    kv_bytes_per_token=1,
                    expected_samples=n,
                )
            )
            rows += list(samples(f"{task}-{index}", n, accuracy(config)))
    environment = {"host": names.get("host", "h"), "versions": {"torch": "2.0"}}
    with Writer.open(url) as writer:
        writer.register_sweep("id", names.get("title", "s"), {"repeats": 1}, environment, cells)
        writer.record(rows)
    return url


def document(url: str, paper: Any = None) -> list[Any]:
    engine = open_engine(url, read_only=True)
    return build(engine, list_sweeps(engine)[0], url, paper)


def verdicts(blocks: list[Any]) -> dict[str, str]:
    (table,) = (block for block in blocks if isinstance(block, Table) and block.columns[0] == "claim")
    return {row[0]: row[-1] for row in table.rows}


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'r.db'}"


def test_an_effect_that_is_there(url: str) -> None:
    found = verdicts(document(fill(url, by_eviction, 400)))
    assert found["hierarchy-evict"] == "supported"
    assert found["hierarchy-hbm"] == "supported"
    assert found["hierarchy-zero-error"] == "supported"
    assert found["hierarchy-half-hbm"] == "not supported", "60% of the bytes are not half of them"


def test_no_effect_with_many_problems(url: str) -> None:
    assert verdicts(document(fill(url, level, 300)))["hierarchy-evict"] == "not supported"


def test_an_effect_that_should_not_be_there(url: str) -> None:
    found = verdicts(document(fill(url, by_hbm, 150)))
    assert found["hierarchy-hbm"] == "not supported"
    assert found["hierarchy-zero-error"] == "not supported"


def test_few_problems_decide_nothing_and_say_what_they_could(url: str) -> None:
    blocks = document(fill(url, by_eviction, 8))
    found = verdicts(blocks)
    assert {found[name] for name in ("hierarchy-hbm", "hierarchy-evict", "hierarchy-3-percent")} == {
        "can't be decided with this n"
    }
    text = markdown(blocks)
    assert "8 problems can show a difference of" in text
    assert "problems show 5.0" in text


def test_the_page_has_protocol_published_numbers_and_sources(url: str) -> None:
    text = markdown(document(fill(url, by_eviction, 100)))
    for words in ("sha256:1", "abc", "temperature=0.0", "torch 2.0", "cochran"):
        assert words in text.replace("\\", "")
    assert "58.0 \\[44.2, 70.6\\]" in text, "published at 5%, Wilson's interval at n = 50"
    assert "model: m here, deepseek-ai/DeepSeek-R1-Distill-Qwen-7B there" in text.replace("\\", "")
    assert "hierarchy has every 16, by default 64" in text
    assert text.count("\nFrom: ") == len(re.findall(r"^\|---", text, re.M))
    assert "tiercache compare id --db" in text
    assert "docs/papers.md" in text


def test_another_database_gives_another_page(tmp_path: Path) -> None:
    """All but the time of the sweep and the database's name follows from the samples."""

    def bare(name: str, accuracy: Accuracy) -> str:
        text = markdown(document(fill(f"sqlite:///{tmp_path}/{name}.db", accuracy, 30, SMALL))).replace(
            f"{name}.db", ""
        )
        return "\n".join(line for line in text.splitlines() if not line.startswith("Sweep id"))

    first, other, again = bare("a", by_eviction), bare("b", level), bare("c", by_eviction)
    assert first != other
    assert first == again


def test_hostile_names_and_no_model_output(url: str) -> None:
    evil = "<script>alert(1)</script> | `x` ![y](z)"
    fill(url, level, 12, SMALL, model=evil, benchmark=evil, policy=evil, host=evil, title=evil)
    blocks = document(url)
    html, text = page(blocks), markdown(blocks)
    assert "<script" not in html
    assert "&lt;script&gt;alert(1)" in html
    inline = [child.type for token in MarkdownIt().enable("table").parse(text) for child in token.children or ()]
    assert not {"image", "link_open", "html_inline"} & set(inline)
    for words in ("EXTRACTED", "OUTPUT", "PROMPT"):
        assert words not in html + text


def test_tasks_of_a_benchmark_are_judged_together_too(url: str) -> None:
    def better(policy: dict[str, Any]) -> float:
        return 0.7 if policy["name"] == "qevict" and policy["placement"]["packed_bytes"] else 0.55

    fill(url, better, 60, "qevict_ruler_mini", ("ruler/vt", "ruler/cwe"))
    blocks = document(url, "qevict")
    (table,) = (block for block in blocks if isinstance(block, Table) and block.columns[0] == "claim")
    judged_on = {row[4] for row in table.rows}
    assert "m on ruler, 2 tasks" in judged_on
    assert len(judged_on) == 3
    together = {row[0]: row[-1] for row in table.rows if row[4] == "m on ruler, 2 tasks"}
    assert together["qevict-layers"] == "supported"
    text = markdown(blocks)
    assert "87.6" in text
    assert text.count("RULER at 32K, mean of its tasks") == 1, "beside the tasks together, not beside each"


def test_what_a_sweep_cannot_decide(url: str) -> None:
    fill(url, level, 5, SMALL)
    with pytest.raises(SpecError, match=r"--paper epikv: no claim .* epikv_aime, epikv_math500"):
        document(url, "epikv")


def test_a_sweep_without_samples(url: str) -> None:
    fill(url, level, 0, SMALL)
    with pytest.raises(SpecError, match="no judged samples yet"):
        document(url)


def test_a_password_is_masked(url: str) -> None:
    fill(url, level, 5, SMALL)
    engine = open_engine(url, read_only=True)
    text = page(build(engine, list_sweeps(engine)[0], "postgresql://user:secret@host/db"))
    assert "secret" not in text
    assert "postgresql" in text


def command(*arguments: str) -> Any:
    app = typer.Typer()
    app.command()(report)
    return CliRunner().invoke(app, list(arguments))


def test_the_command_writes_two_files(url: str, tmp_path: Path) -> None:
    fill(url, level, 10, SMALL, title="../../evil name")
    out = tmp_path / "a" / "b"
    done = command("latest", "--db", url, "--out", str(out), "--paper", "hierarchy")
    assert done.exit_code == 0, done.output
    assert sorted(path.name for path in out.iterdir()) == ["evil-name.html", "evil-name.md"]
    assert done.stdout.split() == [str(out / "evil-name.md"), str(out / "evil-name.html")]
    assert (out / "evil-name.md").read_text().startswith("# ../../evil name beside the papers")


def test_bad_arguments(url: str, tmp_path: Path) -> None:
    fill(url, level, 5, SMALL)
    (tmp_path / "file").write_text("x")
    blocked = command("latest", "--db", url, "--out", str(tmp_path / "file"))
    assert isinstance(blocked.exception, TierCacheError)
    assert "give another folder" in str(blocked.exception)
    assert command("latest", "--db", url, "--paper", "nope").exit_code == 2
    assert "no sweep 'lates'" in str(command("lates", "--db", url).exception)
