"""The served dashboard in a real browser: every page, empty and filled. Keeps screenshots in TIERCACHE_SCREENSHOTS."""

import os
import shutil
import socket
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest

from dashboard.launch import command, environment

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
playwright = pytest.importorskip("playwright.sync_api")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")

PAGES = {"sweeps": "Sweeps", "compare": "Compare", "samples": "Samples"}


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def serve(database):
    """Return a function that serves a kind of database, or one given by its URL, and returns the address."""
    started = []

    def begin(kind):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        url = kind if "://" in kind else database(kind)
        started.append(subprocess.Popen(command(port), env=environment(url), stdout=subprocess.DEVNULL))
        address = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                with urllib.request.urlopen(f"{address}/_stcore/health", timeout=5):
                    return address
            except OSError:
                time.sleep(0.2)
        raise TimeoutError("the dashboard did not start")

    yield begin
    for process in started:
        process.terminate()
        process.wait(20)


@pytest.fixture
def screenshots(tmp_path):
    folder = Path(os.environ.get("TIERCACHE_SCREENSHOTS") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def settled(page, title):
    """Wait until the page with `title` has been built, and see that it shows no exception."""
    page.get_by_role("heading", name=title, exact=True).wait_for(timeout=30_000)
    page.wait_for_selector("[data-testid=stStatusWidget]", state="detached", timeout=30_000)
    assert page.locator("[data-testid=stException]").count() == 0
    return page


def test_empty(serve, browser, screenshots):
    address = serve("missing")
    page = browser.new_page(viewport={"width": 1400, "height": 800})
    for path, title in PAGES.items():
        page.goto(f"{address}/{path}")
        settled(page, title).get_by_text("tiercache run sweeps/demo.yaml").wait_for()
        assert page.get_by_text("Page not found").count() == 0
        page.screenshot(path=screenshots / f"empty-{path}.png")
    page.close()


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """The URL of a database that holds the demo sweep itself, cut to a few problems and run in this process."""
    from cluster.pool import InlinePool, WorkerOptions
    from jobs.coordinator import run_sweep
    from jobs.grid import expand
    from jobs.spec import load_sweep

    sweep = load_sweep(Path(__file__).parents[2] / "sweeps" / "demo.yaml")
    short = [{**entry, "n": 3} for entry in sweep.benchmarks]
    sweep = sweep.model_copy(update={"benchmarks": short})
    url = f"sqlite:///{tmp_path_factory.mktemp('demo') / 'demo.db'}"

    def pools(sweep, cells, samples):
        return InlinePool(WorkerOptions(model=cells[0].model, device="cpu", threads=1))

    run_sweep(sweep, expand(sweep), url, progress=False, pools=pools)
    return url


def test_the_demo(demo, serve, browser, screenshots):
    address = serve(demo)
    page = browser.new_page(viewport={"width": 1400, "height": 2000})
    page.goto(f"{address}/compare")
    settled(page, "Compare").get_by_text("h2o budget=0.5 pin_prompt").first.wait_for(timeout=30_000)
    page.locator(".js-plotly-plot").first.wait_for(timeout=30_000)
    snap(page, screenshots / "demo-compare.png")
    for path, title in PAGES.items():
        page.goto(f"{address}/{path}")
        settled(page, title)
        snap(page, screenshots / f"demo-{path}.png")


VIEWS = {
    "budget": "Accuracy against the resident share",
    "paired": "Difference from the baseline",
    "hierarchy": "Accuracy by HBM ratio and eviction ratio",
}


@pytest.mark.parametrize("view", VIEWS)
def test_the_views_of_compare(serve, browser, screenshots, view):
    page = browser.new_page(viewport={"width": 1280, "height": 1000}, color_scheme="dark")
    page.goto(f"{serve('grid')}/compare?view={view}")
    settled(page, "Compare")
    page.locator(".js-plotly-plot .gtitle", has_text=VIEWS[view]).wait_for(timeout=30_000)
    snap(page, screenshots / f"compare-{view}.png")
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_compare(filled_address, browser, screenshots, scheme):
    page = browser.new_page(viewport={"width": 1400, "height": 1000}, color_scheme=scheme)
    page.goto(f"{filled_address}/compare?axis=share")
    settled(page, "Compare")
    page.locator(".js-plotly-plot .scatterlayer .point").first.wait_for(timeout=30_000)
    for words in ("Accuracy against resident memory", "Accuracy against throughput", "Outcomes", "Memory by tier"):
        page.locator(".js-plotly-plot .gtitle", has_text=words).wait_for(timeout=30_000)
    snap(page, screenshots / f"compare-{scheme}.png")
    red = int(
        page.evaluate("getComputedStyle(document.querySelector('.stApp')).backgroundColor").split("(")[1].split(",")[0]
    )
    assert (red > 128) == (scheme == "light")  # the reader's system decides, not our own theme settings
    page.close()


def test_sweeps_and_samples(filled_address, browser, screenshots, made_up):
    page = browser.new_page(viewport={"width": 1400, "height": 1000})
    page.goto(filled_address)
    settled(page, "Sweeps").get_by_text("339 of 400").wait_for()
    assert page.url.startswith(f"{filled_address}/sweeps?sweep=")  # what the address bar holds can be shared
    snap(page, screenshots / "sweeps.png")
    cell, other = (made_up.cell(place, 40).fingerprint for place in (4, 0))
    page.goto(f"{filled_address}/samples?cell={cell}&sample=0:problem-002&beside={other}")
    settled(page, "Samples").get_by_text("The outputs part after").wait_for()
    page.locator(".js-plotly-plot .barlayer .point").first.wait_for(timeout=30_000)
    page.get_by_text("<script>").first.wait_for()
    assert "owned" not in page.title()
    snap(page, screenshots / "samples.png")
    page.close()


def test_a_running_sweep_moves_without_a_reload(serve, browser, database, made_up):
    page = browser.new_page()
    page.goto(serve("in_progress"))
    settled(page, "Sweeps").get_by_text("1 of 40", exact=True).wait_for()
    made_up.in_progress(database("in_progress"), 7)
    page.get_by_text("7 of 40", exact=True).wait_for(timeout=20_000)
    settled(page, "Sweeps")
    page.close()


@pytest.fixture(scope="module")
def filled_address(serve):
    return serve("fill")


def snap(page, path):
    """Take a picture of the whole page: Streamlit scrolls inside it, so the window is made as high as the content."""
    settled(page, page.locator("h1").first.inner_text())
    height = page.evaluate("document.querySelector('[data-testid=stMain]').scrollHeight")
    width = page.viewport_size["width"]
    page.set_viewport_size({"width": width, "height": min(height + 80, 4000)})
    page.wait_for_timeout(700)  # charts draw themselves anew for the new size
    page.screenshot(path=path)
    page.set_viewport_size({"width": width, "height": 1000})
