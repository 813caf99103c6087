"""The page *Which policy?*: what the answer says is what it shows, choices live in the URL, labels stay text."""

import pytest
from streamlit.testing.v1 import AppTest

from dashboard.advice_figures import in_words, losses
from dashboard.advice_page import backing, candidates
from dashboard.colours import looks
from db.connection import open_engine
from db.queries import cell_summaries
from jobs.advice import Question, Share, answer, room, sentences, settings


def run_page():  # its source is run as the app, so it imports for itself
    from dashboard.advice_page import page

    page()


@pytest.fixture
def visit(database, monkeypatch):
    def open_page(kind="fill", **query):
        monkeypatch.setenv("TIERCACHE_DB", database(kind))
        app = AppTest.from_function(run_page, default_timeout=90)
        for key, value in query.items():
            app.query_params[key] = value
        return checked(app.run())

    return open_page


def checked(app):
    assert not app.exception, [error.message for error in app.exception]
    return app


def words(app):
    return "\n".join(str(part.value) for part in [*app.text, *app.warning, *app.info, *app.code, *app.subheader])


@pytest.fixture
def found(database):
    engine = open_engine(database("fill"), read_only=True)
    (setting,) = settings(engine, cell_summaries(engine))
    return answer(setting, Question(Share(0.6), 0.1))


@pytest.fixture
def look(found):
    return looks([(each.cell.policy, each.cell.policy_name) for each in found.candidates])


def symbols(trace):
    found = trace.marker.symbol
    return [found] if isinstance(found, str) else found


def test_the_figure_has_a_mark_a_policy_and_both_limits(found, look):
    figure = losses(found, look)
    compared = [each for each in found.candidates if each.margin and each.size.share is not None]
    drawn = {  # marks of one preset are one trace
        (x, y): symbol for trace in figure.data for x, y, symbol in zip(trace.x, trace.y, symbols(trace), strict=True)
    }
    assert set(drawn) == {(each.size.share, each.margin.difference) for each in compared}
    loss, budget = figure.layout.shapes
    assert (loss.y0, budget.x0) == (-0.1, 0.6)
    undecided = [each for each in compared if each.verdict in ("open", "too large")]
    assert undecided
    assert all(drawn[each.size.share, each.margin.difference].endswith("-open") for each in undecided)
    assert figure.layout.xaxis.title.text
    assert figure.layout.yaxis.title.text
    assert compared[0].cell.policy in in_words(found)


def test_the_figure_without_anything_to_compare_says_so(found, look):
    from dataclasses import replace

    figure = losses(replace(found, candidates=()), look)
    assert "No policy was compared" in figure.layout.annotations[0].text


def test_the_tables_are_the_answer(found):
    table = candidates(found)
    assert list(table["policy"]) == [each.cell.policy for each in found.candidates]
    row = table[table["policy"] == "h2o budget=0.5"].iloc[0]
    each = next(each for each in found.candidates if each.cell.policy == "h2o budget=0.5")
    assert row["loss"] == pytest.approx(-100 * each.margin.difference)
    assert row["samples"] == f"samples?cell={each.cell.fingerprint}"
    assert "view=paired" in row["compare"]
    said = sentences(found)
    behind = backing(found, said)
    assert set(behind["sentence"]) == set(range(1, len(said) + 1))
    assert set(behind["cell"]) <= {each.cell.fingerprint for each in found.candidates} | {
        found.setting.full.fingerprint
    }


def test_the_page_says_what_the_answer_says(visit, found):
    app = visit(share="0.6", loss="10")
    for sentence in sentences(found):
        assert sentence.text in words(app)
    assert "tiercache advise all" in words(app)
    assert "--budget 0.6 --loss 10" in words(app)


def test_choices_go_to_the_url(visit):
    app = visit()
    assert (app.query_params["share"], app.query_params["loss"], app.query_params["budget"]) == ("0.5", "2", "share")
    next(box for box in app.selectbox if box.label == "At most").select("0.75")
    app = checked(app.run())
    assert app.query_params["share"] == "0.75"
    assert "75% of the full cache's device bytes" in words(app)
    next(box for box in app.selectbox if box.label == "Budget").select("bytes")
    app = checked(app.run())
    assert "8.00 GiB for 8 rows of 8,192 tokens" in words(app)


def test_bytes_on_a_gpu_are_planned_for_another_model(visit):
    app = visit(
        budget="bytes", room="2GiB", planned_for="DeepSeek-R1-Distill-Qwen-7B", context="4096", batch="1", loss="10"
    )
    assert "No policy was measured on deepseek-ai/DeepSeek-R1-Distill-Qwen-7B" in words(app)
    assert "--on deepseek-ai/DeepSeek-R1-Distill-Qwen-7B --context 4096" in words(app)


@pytest.mark.parametrize("size", ["much", "-1GiB", "<script>", "9" * 30])
def test_nonsense_is_explained_in_plain_text(visit, size):
    assert "This can't be answered" in words(visit(budget="bytes", room=size))


def test_nonsense_in_the_url_is_harmless(visit):
    names = ("evidence", "model", "benchmark", "protocol", "budget", "share", "loss", "context", "batch")
    assert words(visit(**dict.fromkeys(names, "?")))


@pytest.mark.parametrize(
    "kind", ["sweep_without_samples", "sweep_without_cells", "one_policy", "nothing_but_nulls", "two_protocols", "grid"]
)
def test_odd_databases_say_something(visit, kind):
    assert words(visit(kind))


@pytest.mark.parametrize("kind", ["missing", "only_tables"])
def test_empty_databases_name_the_command(visit, kind):
    assert "tiercache run sweeps/demo.yaml" in words(visit(kind))


def test_an_answer_about_a_gpu_can_be_drawn(database, look):
    engine = open_engine(database("fill"), read_only=True)
    (setting,) = settings(engine, cell_summaries(engine))
    figure = losses(answer(setting, Question(room(2**33, "reasoner", 1024, 128, 4))), look)
    assert len(figure.layout.shapes) == 1, "a size has no share to be drawn at"
