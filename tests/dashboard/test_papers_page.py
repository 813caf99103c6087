"""The page Papers: verdicts are the report's, published differences the papers', filters filter, names stay text."""

import json
from pathlib import Path

import plotly.graph_objects as go
import pytest
from streamlit.testing.v1 import AppTest

from dashboard.paper_figures import dumbbells, in_words, labels
from dashboard.paper_results import Pair, of_papers, pairs, published, read, results, tables
from dashboard.papers_page import verdict_table
from db.connection import open_engine
from db.queries import list_sweeps
from db.rows import CellRow, SampleRow
from db.writer import Writer
from jobs.papers.claims import CLAIMS
from jobs.papers.report import build
from jobs.spec import load_sweep

ROOT = Path(__file__).parents[2]
EVICTED = {0: 0.9, 0.03: 0.8}
HOSTILE = "<script>alert(1)</script> **b** $x$"


def fill(url, n=30, name="hierarchy-grid-mini", model="reasoner", evict=(0, 0.03)):
    """A part of 2605.09490's grid as it claims it to be: eviction costs, the HBM ratio doesn't."""
    policies = load_sweep(ROOT / "sweeps" / "hierarchy_grid_mini.yaml").resolved_policies()
    policies = [policy for policy in policies if policy.placement.evict in evict]
    cells, rows = [], []
    for place, policy in enumerate(policies):
        config = json.loads(json.dumps(policy.config()))
        right = round(EVICTED[config["placement"]["evict"]] * n)
        cells.append(
            CellRow(
                fingerprint=f"{name}-{place}",
                model=model,
                benchmark="chain",
                policy=policy.label,
                policy_name=policy.name,
                config={"policy": config, "benchmark": {"name": "chain"}, "model": {"id": model}},
                protocol="p1",
                kv_bytes_per_token=1,
                expected_samples=n,
            )
        )
        rows += [
            SampleRow(
                fingerprint=f"{name}-{place}",
                problem_id=f"{problem:04d}",
                repeat=0,
                seed=1,
                outcome="correct" if problem < right else "wrong",
                score=float(problem < right),
                finish_reason="eos",
                prompt="PROMPT",
                output="OUTPUT",
                reference="1",
                hbm_bytes_mean=60.0,
                packed_bytes_mean=0.0,
                full_bytes_mean=100.0,
            )
            for problem in range(n)
        ]
    with Writer.open(url) as writer:
        writer.register_sweep(name, name, {"repeats": 1}, {"host": HOSTILE}, cells)
        writer.record(rows)
    return url


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    return fill(f"sqlite:///{tmp_path_factory.mktemp('papers') / 'p.db'}")


@pytest.fixture(scope="module")
def found(url):
    engine = open_engine(url, read_only=True)
    return results([read(engine, sweep) for sweep in of_papers(list_sweeps(engine))])


def test_verdicts_are_those_of_the_report(url, found):
    engine = open_engine(url, read_only=True)
    blocks = build(engine, list_sweeps(engine)[0], url)
    (table,) = (block for block in blocks if getattr(block, "columns", ("",))[0] == "claim")
    assert {each.judged.claim.id: each.judged.verdict for each in found} == {row[0]: row[-1] for row in table.rows}
    assert list(verdict_table(found)["claim"]) == [each.judged.claim.id for each in found]


def test_published_differences_are_the_papers():
    by_id = {claim.id: claim for claim in CLAIMS}
    three = by_id["hierarchy-3-percent"]
    value, low, high = published(three.tests[0], three.paper)
    assert value == pytest.approx(-0.06), "60 against 66 of 50 problems"
    assert low == pytest.approx(-0.2406, abs=0.001), "Newcombe's interval for two groups"
    assert high == pytest.approx(0.1264, abs=0.001)
    hbm = by_id["hierarchy-hbm"]
    assert published(hbm.tests[0], hbm.paper) == (pytest.approx(0.0), None, None), "the printed rows are equal"
    evict = by_id["hierarchy-evict"]
    assert published(evict.tests[0], evict.paper)[0] == pytest.approx(-0.26), "34 against 60"
    question = by_id["audit-positions"]
    assert published(question.tests[0], question.paper) == (None, None, None), "the paper prints no such number"


def test_the_figure_has_ours_published_and_the_margin(found):
    told = pairs(found)
    figure = dumbbells(told)
    ours = [trace for trace in figure.data if trace.marker.symbol == "circle" and trace.x[0] is not None]
    theirs = [trace for trace in figure.data if trace.marker.symbol == "diamond-open" and trace.x[0] is not None]
    assert [trace.x[0] for trace in ours] == [pair.value for pair in told[::-1]]
    assert len(theirs) == sum(pair.published is not None for pair in told)
    assert len(figure.layout.shapes) == len(told) + 1
    assert figure.layout.xaxis.title.text
    go.Figure(figure.to_dict())
    assert "hierarchy-3-percent: ours" in in_words(told)
    assert "No test" in dumbbells([]).layout.annotations[0].text


def test_tests_of_one_claim_are_told_apart():
    def pair(claim, what):
        return Pair(claim, what, "hierarchy", "supported", 0.0, -0.1, 0.1, 0.05, 10, None)

    said = labels([pair("a", "x hbm=0.3 less full"), pair("a", "x hbm=0.5 less full"), pair("b", "anything")])
    assert said == ["a hbm=0.3", "a hbm=0.5", "b"]


def test_only_the_papers_policies_are_read(made_up, tmp_path):
    """Where no policy is one of the papers', no score is read: a large store answers at once."""
    address = f"sqlite:///{tmp_path / 'other.db'}"
    made_up.fill(address, 5)
    engine = open_engine(address, read_only=True)
    (sweep,) = list_sweeps(engine)
    assert read(engine, sweep).settings == ()
    assert of_papers([sweep]) == []


def test_a_published_table_stands_beside_the_sweep_with_most_of_it(url):
    engine = open_engine(url, read_only=True)
    reads = [read(engine, sweep) for sweep in list_sweeps(engine)]
    assert [table.id for _, _, table in tables(reads)] == ["hierarchy-ratios"]


# The page itself


def run_page():  # its source is run as the app, so it imports for itself
    from dashboard.papers_page import page

    page()


@pytest.fixture
def visit(monkeypatch):
    def open_page(address, **query):
        monkeypatch.setenv("TIERCACHE_DB", address)
        app = AppTest.from_function(run_page, default_timeout=120)
        for key, value in query.items():
            app.query_params[key] = value
        app.run()
        assert not app.exception, [error.message for error in app.exception]
        return app

    return open_page


def words(app):
    parts = [*app.text, *app.info, *app.code, *app.caption, *app.subheader]
    return "\n".join(str(part.value) for part in parts)


def claims(app):
    frames = [frame.value for frame in app.dataframe if "verdict" in frame.value and "whose" in frame.value]
    return {row["claim"]: row["verdict"] for frame in frames for _, row in frame.iterrows()}


def test_the_page_shows_verdicts_tables_and_where_numbers_come_from(visit, url, found):
    app = visit(url)
    assert claims(app) == {each.judged.claim.id: each.judged.verdict for each in found}
    text = words(app)
    assert "tiercache compare hierarchy-grid-mini" in text
    assert "At the paper's size" in text
    assert "Beside arXiv 2605.09490" in text
    assert "model: reasoner here, deepseek-ai/DeepSeek-R1-Distill-Qwen-7B there" in text
    assert not any(HOSTILE in part.value for part in app.markdown)
    counts = {metric.label: metric.value for metric in app.metric}
    assert sum(int(counts[name]) for name in counts if name != "not run here") == len(found)


def test_filters(visit, url, found):
    wanted = {each.judged.claim.id for each in found if each.judged.verdict == "supported"}
    assert set(claims(visit(url, verdict="supported"))) == wanted
    nothing = visit(url, paper="epikv")
    assert claims(nothing) == {}
    assert "No claim of this selection can be judged" in words(nothing)
    assert visit(url, paper="hierarchy").query_params["paper"] == "hierarchy"


@pytest.mark.parametrize("kind", ["fill", "sweep_without_samples", "sweep_without_cells", "two_protocols", "grid"])
def test_databases_without_the_papers_sweeps(visit, database, kind):
    assert "No claim of this selection can be judged" in words(visit(database(kind), paper="?", paper_sweep="?"))


@pytest.mark.parametrize("kind", ["missing", "only_tables"])
def test_empty_databases_name_the_first_command(visit, database, kind):
    assert "tiercache run sweeps/demo.yaml" in words(visit(database(kind)))


def test_hostile_names_stay_text(visit, tmp_path):
    app = visit(fill(f"sqlite:///{tmp_path / 'h.db'}", 12, model=HOSTILE, evict=(0,)))
    assert HOSTILE in words(app)
    assert not any(HOSTILE in part.value for part in [*app.markdown, *app.caption])
