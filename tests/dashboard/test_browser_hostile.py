"""Hostile texts on every page, in a real browser: they are seen as they are, and nothing in them comes to life."""

import pytest

from dashboard.pages import PAGES

HARMED = """() => {
  const found = [];
  if (window.owned) found.push('a script ran');
  const marks = {
    'a link or a picture': "[href^='javascript:'], [src*='example.invalid'], [href*='example.invalid']",
    'a handler': '[onerror], [onload], [onclick]',
    'a formula': '.katex',
    'markup of a text': '[data-testid=stMain] :is(h1:not(:first-of-type), strong, del)',
  };
  for (const [name, selector] of Object.entries(marks))
    for (const each of document.querySelectorAll(selector)) found.push(`${name}: ${each.outerHTML.slice(0, 300)}`);
  for (const each of document.querySelectorAll('[data-testid=stMain] [data-testid=stIconMaterial]'))
    if (each.textContent === 'delete') found.push('an icon: delete');
  return found;
}"""


@pytest.fixture(scope="module")
def tab(browsing, browser, serve):
    opened = browsing.Tab.open(browser, serve("hostile"))
    yield opened
    opened.close()


@pytest.mark.parametrize("path", [page.path for page in PAGES if page.needs_database])
def test_nothing_comes_to_life(tab, path):
    tab.complaints.clear()
    tab.visit(path)
    unharmed(tab)
    for _ in tab.filters():
        unharmed(tab)


@pytest.mark.parametrize("number", [0, 2, 3])
def test_what_a_model_wrote_is_shown_as_it_is(tab, hostile, made_up, number):
    tab.complaints.clear()
    cell, other = (made_up.cell(place, 4).fingerprint for place in (4, 0))
    tab.visit(f"samples?cell={cell}&beside={other}&sample=0:{number} {hostile.NAME}".replace("#", "%23"))
    unharmed(tab)
    text = tab.page.locator("[data-testid=stMain]").inner_text()
    for trick in (hostile.SCRIPT, "[click](javascript:window.owned=1)", "**bold**", "$x^2$", ":material/delete:"):
        assert trick in text
    assert f"Problem {number} " in text
    assert ("x" * 1000 in text) == (number == 2), "a line of a megabyte"


def unharmed(tab):
    assert tab.page.evaluate(HARMED) == []
    assert tab.complaints == []  # a request to example.invalid would be among them
    assert tab.page.locator("[data-testid=stException]").count() == 0
