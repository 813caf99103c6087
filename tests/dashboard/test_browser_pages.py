"""Every page of the dashboard over every kind of store, in a real browser: nothing breaks, and nothing is fetched.

A page that is added to `dashboard.pages` is visited without a change here. Pictures of the demo in both themes, narrow
and wide, are kept in TIERCACHE_SCREENSHOTS.
"""

import pytest

from dashboard.pages import PAGES

PATHS = [page.path for page in PAGES]
TITLES = {page.path: page.title for page in PAGES}
WITH_DATABASE = [page.path for page in PAGES if page.needs_database]
WIDTHS = (1280, 1920)


@pytest.fixture(scope="module")
def tabs(browsing, browser, serve):
    """Return a function that gives the tab of a store, one for each: pages are opened in it one after the other."""
    opened = {}

    def of(store, **settings):
        key = (store, *settings.items())
        if key not in opened:
            opened[key] = browsing.Tab.open(browser, serve(store), **settings)
        opened[key].complaints.clear()
        return opened[key]

    yield of
    for tab in opened.values():
        tab.close()


def looked_at(tab, path):
    """Open a page and see that it is the right one, and whole; return its text."""
    tab.visit(path)
    return checked(tab, TITLES[path.partition("?")[0]])


def checked(tab, title):
    page = tab.page
    assert page.locator("h1").first.inner_text() == title
    assert page.locator("[data-testid=stException]").count() == 0
    assert page.get_by_text("Page not found").count() == 0
    assert tab.complaints == []
    assert "Traceback" not in tab.server.log.read_text(errors="replace")
    return page.locator("[data-testid=stMain]").inner_text()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("store", ["missing", "only_tables"])
def test_empty_stores(tabs, store, path):
    text = looked_at(tabs(store), path)
    assert ("tiercache run sweeps/demo.yaml" in text) == (path in WITH_DATABASE)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("store", ["one_policy", "nothing_but_nulls"])
def test_stores_of_almost_nothing(tabs, store, path):
    looked_at(tabs(store), path)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", PATHS)
def test_the_demo_in_both_themes(tabs, demo, screenshots, path, scheme):
    tab = tabs(demo, color_scheme=scheme)
    looked_at(tab, path)
    colour = tab.page.evaluate("getComputedStyle(document.querySelector('.stApp')).backgroundColor")
    assert (int(colour.split("(")[1].split(",")[0]) > 128) == (scheme == "light"), "the reader's system decides"
    for width in WIDTHS:
        tab.page.set_viewport_size({"width": width, "height": 1000})
        height = tab.page.evaluate("document.querySelector('[data-testid=stMain]').scrollHeight")
        tab.page.set_viewport_size({"width": width, "height": min(height + 80, 4000)})
        tab.page.wait_for_timeout(250)  # charts draw themselves anew for the new size
        wide = tab.page.evaluate("document.querySelector('[data-testid=stMain]').scrollWidth")
        assert wide <= width, "the page scrolls sideways"
        tab.page.screenshot(path=screenshots / f"demo-{path}-{scheme}-{width}.png")
    assert checked(tab, TITLES[path])
