"""The HTML report: all cells are in it, all of it is text, nothing is loaded, and it opens from a file."""

import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest
import yaml
from typer.testing import CliRunner

from dashboard.static_report import Failure, report
from dashboard.static_report.markup import text
from db.connection import open_engine
from db.queries import cell_summaries, list_sweeps
from jobs.cli import app

# Every element that the report is made of.
OURS = {
    *("html", "head", "meta", "title", "style", "body", "header", "nav", "main", "section", "div", "span", "script"),
    *("h1", "h2", "p", "a", "em", "ul", "li", "pre", "code", "figure", "figcaption", "details", "summary"),
    *("table", "caption", "thead", "tbody", "tr", "th", "td", "button", "label", "input", "output"),
}
VOID = {"meta", "input", "br", "link", "img"}
ODD = ["one_policy", "nothing_but_nulls", "sweep_without_samples", "sweep_without_cells", "in_progress"]


class Page(HTMLParser):
    """What a browser makes of it: text by element, and every element with its attributes. Scripts apart."""

    def __init__(self, source):
        super().__init__()
        self.open, self.elements, self.rows, self.texts, self.scripts = [], [], [], [], []
        self.feed(source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("script", "style"):
            self.scripts.append(data)
            return
        self.texts.append(data)
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def made(database):
    """Return a function from a kind of database to (source, parsed page, cells)."""
    found = {}

    def of(kind):
        if kind not in found:
            engine = open_engine(database(kind), read_only=True)
            sweep = max(list_sweeps(engine), key=lambda each: each.id)
            source = report(engine, sweep, [], {"kl": "what <b>KL</b> is"})
            assert source == report(engine, sweep, [], {"kl": "what <b>KL</b> is"})  # nothing of now is in it
            found[kind] = source, Page(source), cell_summaries(engine, sweep.id)
            engine.dispose()
        return found[kind]

    return of


def test_every_cell_has_a_row_with_its_numbers(made):
    _, page, cells = made("fill")
    by_key = {row[-1]: row for row in page.rows}
    for cell in cells:
        row = by_key[cell.fingerprint]
        assert row[0] == cell.policy
        if cell.n:
            assert f"{100 * cell.accuracy:.1f} [{100 * cell.accuracy_low:.1f}, {100 * cell.accuracy_high:.1f}]" in row
        if "–" in row:
            assert row[-2]  # why
    waiting = next(cell for cell in cells if not cell.n)
    assert "no sample finished yet" in by_key[waiting.fingerprint][-2]


def test_all_charts_are_there_with_words(made):
    source, page, _ = made("grid")
    names = [attributes["id"].partition("-")[2] for attributes in page.all("div") if attributes.get("class") == "plot"]
    assert names == ["accuracy-memory", "budget-curves", "paired", "hbm-evict-1", "outcomes", "memory"]  # no shard
    for attributes in page.all("div"):
        if attributes.get("class") == "plot":
            assert attributes["role"] == "img"
            assert attributes["aria-label"].startswith("Chart: ")
    assert source.count("plotly.js v") == 1
    assert 'id="g1-accuracy-throughput"' in made("fill")[0]


def test_the_markup_is_accessible(made):
    _, page, _ = made("fill")
    assert page.all("html")[0]["lang"] == "en"
    assert len(page.all("table")) == len(page.all("caption"))
    assert all(attributes.get("scope") in ("row", "col") for attributes in page.all("th"))
    assert all(box.get("tabindex") == "0" for box in page.all("div") if box.get("class") == "scroll")
    labelled = {attributes["for"] for attributes in page.all("label")}
    assert {attributes["id"] for attributes in page.all("input")} <= labelled
    keys = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(set(keys)) == len(keys)
    assert {attributes["href"][1:] for attributes in page.all("a")} <= set(keys)


@pytest.mark.parametrize("kind", ["fill", "two_protocols", *ODD])
def test_nothing_is_loaded(made, kind):
    source, page, cells = made(kind)
    policy = next(each["content"] for each in page.all("meta") if each.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe-inline" not in re.search(r"script-src[^;]*", policy)[0]
    for _, attributes in page.elements:
        assert not {"src", "srcset", "action", "background", "poster"} & set(attributes)
        assert not any(name.startswith("on") for name in attributes)
        assert attributes.get("href", "#").startswith("#")
    style = source[source.index("<style>") : source.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style
    if not any(cell.n for cell in cells):
        assert len(source) < 200_000  # nothing to draw, so nothing to draw it with


@pytest.mark.parametrize("kind", ODD)
def test_odd_sweeps(made, kind):
    source, page, cells = made(kind)
    assert {cell.fingerprint for cell in cells} <= {row[-1] for row in page.rows if row}
    if kind == "sweep_without_cells":
        assert "This sweep has no cells." in source
    if kind == "in_progress":
        assert "was not finished" in source


def test_protocols_are_never_in_one_table(made):
    _, page, _ = made("two_protocols")
    assert len([each for each in page.all("section") if each.get("class") == "group"]) == 2


def test_hostile_texts_are_text(made, database):
    source, page, cells = made("hostile")
    failures = [Failure("<img src=x onerror=alert(1)>", 2, 1, "</table><script>alert(1)</script>")]
    assert {text_of(cell.policy) for cell in cells} <= {row[0] for row in page.rows if row}
    assert {tag for tag, _ in page.elements} <= OURS
    assert len(page.all("script")) == 2 + len([each for each in page.all("div") if each.get("class") == "plot"])
    assert "\0" not in source
    assert "\u202e" not in source
    engine = open_engine(database("hostile"), read_only=True)
    other = Page(report(engine, list_sweeps(engine)[0], failures, {}))
    engine.dispose()
    assert ["<img src=x onerror=alert(1)>", "2", "1", "</table><script>alert(1)</script>"] in other.rows
    assert not other.all("img")


def text_of(value):
    """What stands in the page for a text, as a reader sees it."""
    return Page(f"<p>{text(value)}</p>").texts[0]


def test_the_specification_can_be_run_again(made, database):
    _, page, _ = made("fill")
    shown = next(each for each in page.texts if each.startswith("name:"))
    engine = open_engine(database("fill"), read_only=True)
    assert yaml.safe_load(shown) == list_sweeps(engine)[0].spec
    engine.dispose()


def test_a_password_in_the_specification_is_not_handed_on(made_up, tmp_path):
    from db.writer import Writer

    url = f"sqlite:///{tmp_path / 'secret.db'}"
    with Writer.open(url) as writer:
        spec = {"name": "s", "database": "postgresql://me:hunter2@host/db"}
        writer.register_sweep("sweep-1", "s", spec, {}, [made_up.cell(0, 1)])
    engine = open_engine(url, read_only=True)
    source = report(engine, list_sweeps(engine)[0], [], {})
    engine.dispose()
    assert "hunter2" not in source
    assert "me:***@host/db" in source


def test_no_streamlit_comes_along():
    code = "import sys, dashboard.static_report; sys.exit('streamlit' in sys.modules or 'torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.fixture
def run(database, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TIERCACHE_DB", database("fill"))
    return lambda *arguments: CliRunner().invoke(app, ["export", *arguments])


def test_the_command_writes_one_file(run, tmp_path):
    done = run("latest", "--html")
    assert (done.exit_code, done.stdout.strip()) == (0, "made-up-sweep.html")
    source = (tmp_path / "made-up-sweep.html").read_text(encoding="utf-8")
    assert "RuntimeError: made up" in source  # the failed sample's reason
    assert run("latest", "--format", "html", "-o", "other.html").exit_code == 0
    assert (tmp_path / "other.html").read_text(encoding="utf-8") == source
    assert run("latest", "-o", "table.csv").exit_code == 0
    assert (tmp_path / "table.csv").read_text(encoding="utf-8") == run("latest").stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["made-up-sweep.html", "other.html", "table.csv"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["latest", "--html", "--format", "csv"], "two formats"),
        (["latest", "--html", "-o", "no/such/folder.html"], "doesn't exist"),
        (["latest", "--html", "-o", "."], "that is a folder"),
        (["nope", "--html", "-o", "x.html"], "no sweep 'nope'"),
    ],
)
def test_nonsense_writes_nothing(run, tmp_path, arguments, words):
    done = run(*arguments)
    assert done.exit_code != 0
    assert words in str(done.exception)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_opens_from_a_file(made, browser, tmp_path, screenshots, scheme):
    for kind in ("grid", "hostile"):
        path = tmp_path / "report.html"
        path.write_text(made(kind)[0], encoding="utf-8", errors="replace")
        page = browser.new_page(viewport={"width": 1280, "height": 1000}, color_scheme=scheme)
        said, asked = [], []
        page.on("console", lambda message, said=said: said.append(message.text))
        page.on("pageerror", lambda error, said=said: said.append(str(error)))
        page.on("request", lambda request, asked=asked: asked.append(request.url))
        page.goto(path.as_uri())
        page.locator(".plot").first.scroll_into_view_if_needed()
        page.locator(".js-plotly-plot .scatterlayer .point").first.wait_for(timeout=60_000)
        page.locator(".plot[id$=outcomes]").scroll_into_view_if_needed()
        page.locator(".plot[id$=outcomes] .barlayer .point").first.wait_for(state="attached", timeout=60_000)
        red = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0]")
        assert (int(red) > 128) == (scheme == "light")
        assert page.evaluate("window.owned") is None
        assert said == []
        assert [url for url in asked if not url.startswith(("blob:", "data:"))] == [path.as_uri()]
        page.screenshot(path=screenshots / f"report-{scheme}.png")
        if kind == "grid":
            used(page)
        page.close()


def used(page):
    """Sort, filter, save, change the theme: by keyboard where one would."""
    numbers = page.locator("table.sortable tbody td:nth-child(3)")
    heading = page.locator("table.sortable thead button", has_text="accuracy").first
    heading.focus()
    page.keyboard.press("Enter")
    shown = numbers.all_inner_texts()
    scores = [float(each.split()[0]) for each in shown if each != "–"]
    assert scores == sorted(scores)
    assert "–" not in shown[: len(scores)]
    page.locator("input.filter").first.fill("evict=0.1")
    assert page.locator("table.sortable tbody tr:visible").count() == 2
    with page.expect_download() as saved:
        page.locator("[data-of$=outcomes][data-save=png]").click()
    assert saved.value.suggested_filename == "tiercache-g1-outcomes.png"
    assert saved.value.path().read_bytes()[:4] == b"\x89PNG"
    ground = "document.querySelector('.plot[id$=outcomes]').layout.paper_bgcolor"
    assert page.evaluate(ground) in ("#ffffff", "#171614")
    page.emulate_media(color_scheme="dark")
    for _ in range(100):  # playwright's own waiting needs eval, which the page forbids
        if page.evaluate(ground) == "#171614":
            break
        page.wait_for_timeout(50)
    assert page.evaluate(ground) == "#171614"
