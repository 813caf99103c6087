"""What the dashboard does while it is looked at: views, links, a sweep that runs, a choice that stays."""

import dataclasses
from urllib.parse import parse_qs, urlsplit

import pytest

from db.writer import Writer


@pytest.fixture
def tab(browsing, browser):
    """Return a function that opens a tab on a server; all are closed at the end."""
    opened = []

    def begin(server, **settings):
        opened.append(browsing.Tab.open(browser, server, **settings))
        return opened[-1]

    yield begin
    for each in opened:
        each.close()


def chart(tab, words):
    tab.page.locator(".js-plotly-plot .gtitle", has_text=words).wait_for(timeout=30_000)


VIEWS = {
    "budget": "Accuracy against the resident share",
    "paired": "Difference from the baseline",
    "hierarchy": "Accuracy by HBM ratio and eviction ratio",
}


def test_the_views_of_compare(tab, serve):
    seen = tab(serve("grid"), color_scheme="dark")
    for view, words in VIEWS.items():
        seen.visit(f"compare?view={view}")
        chart(seen, words)
    assert seen.complaints == []


@pytest.mark.parametrize(("path", "name"), [("compare", "view"), ("speed", "part")])
def test_each_view_can_be_chosen_after_another(tab, serve, path, name):
    seen = tab(serve("grid"))
    seen.visit(path)
    buttons = seen.page.locator("[data-testid=stButtonGroup]").first.locator("button")
    chosen = []
    for place in [*range(1, buttons.count()), 0, 1]:
        assert seen.timed(buttons.nth(place).click) is not None
        chosen.append(parse_qs(urlsplit(seen.page.url).query)[name][0])
    assert len(set(chosen)) == buttons.count()
    assert chosen[-1] == chosen[0], "a view chosen twice is the same one"
    assert seen.complaints == []


def test_compare(tab, serve):
    seen = tab(serve("fill"))
    seen.visit("compare?axis=share")
    seen.page.locator(".js-plotly-plot .scatterlayer .point").first.wait_for(timeout=30_000)
    for words in ("Accuracy against resident memory", "Accuracy against throughput", "Outcomes", "Memory by tier"):
        chart(seen, words)
    assert seen.complaints == []


def test_links_to_sweeps_and_samples(tab, serve, made_up):
    seen = tab(serve("fill"))
    seen.visit("")
    seen.page.get_by_text("339 of 400").first.wait_for(timeout=30_000)
    assert seen.page.url.startswith(f"{seen.server.address}/sweeps?sweep=")  # what the address bar holds can be shared
    cell, other = (made_up.cell(place, 40).fingerprint for place in (4, 0))
    seen.visit(f"samples?cell={cell}&sample=0:problem-002&beside={other}")
    seen.page.get_by_text("The outputs part after").wait_for()
    seen.page.locator(".js-plotly-plot .barlayer .point").first.wait_for(timeout=30_000)
    assert seen.complaints == []


@pytest.fixture
def running(tmp_path, made_up):
    """Return a writer whose database holds one sweep that runs and has a first sample."""
    url = f"sqlite:///{tmp_path}/running.db"
    made_up.in_progress(url)
    with Writer.open(url) as writer:
        yield writer


def test_a_running_sweep_is_followed_until_nothing_runs(running, tab, serve, made_up):
    seen = tab(serve(running.engine.url.render_as_string(hide_password=False)))
    seen.visit("sweeps")
    seen.page.get_by_text("1 of 40", exact=True).first.wait_for()
    seen.page.evaluate("window.stayed = true")
    row = made_up.cell(0, 40)
    running.record(made_up.samples(row, 0, 7))
    seen.page.get_by_text("7 of 40", exact=True).first.wait_for(timeout=30_000)
    running.set_state("sweep-1", "finished")
    running.record(made_up.samples(row, 0, 9))
    seen.page.get_by_text("9 of 40", exact=True).first.wait_for(timeout=30_000)
    seen.settle()
    runs = seen.page.evaluate("seen.runs")
    seen.page.wait_for_timeout(4500)  # one and a half of its turns
    assert seen.page.evaluate("seen.runs") == runs, "it asks on although nothing runs"
    assert seen.page.evaluate("window.stayed"), "the page was loaded anew"
    assert seen.complaints == []


def test_a_chosen_sample_stays_chosen_when_others_come_before_it(running, tab, serve, made_up):
    row = made_up.cell(0, 40)
    made = made_up.samples(row, 0, 12)
    running.record(made[4:8])
    seen = tab(serve(running.engine.url.render_as_string(hide_password=False)))
    seen.visit(f"samples?cell={row.fingerprint}")
    click_row(seen, "Samples of the cell", 2)  # problem 0 is there, then 4, 5
    seen.page.get_by_text("Problem problem-005, repeat 0").first.wait_for(timeout=30_000)
    running.record([*made[1:4], dataclasses.replace(made[4], repeat=1)])
    seen.visit(seen.page.url.partition(f"{seen.server.address}/")[2])
    seen.page.get_by_text("Problem problem-005, repeat 0").first.wait_for(timeout=30_000)
    assert seen.complaints == []


def table_of(tab, alt):
    return tab.page.locator(f"[data-testid=stDataFrameResizable][aria-label='{alt}']").first


def click_row(tab, alt, row):
    """Choose a row of a table, which is drawn on a canvas: its box is in the first column, 35 pixels a row."""
    place = table_of(tab, alt).bounding_box()
    tab.page.mouse.click(place["x"] + 16, place["y"] + 35 * (row + 1) + 17)
