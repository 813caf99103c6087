"""The served dashboard in Chromium, timed: what the tests of its pages and `dashboard_speed.py` share.

A page is there once its script has ended and nothing has been drawn for a moment; that moment isn't counted. Its first
paint is earlier: its title and the first of its tables or charts are seen. Beside what the reader waits stands the
processor time that the server took of it, which a busy machine doesn't lengthen much.
"""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from dashboard.launch import command, environment

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
QUIET_MS = 350
ANSWERS_S = 1.5  # a choice that starts no run of the page within this has changed nothing
# Runs before the page's own code: notes when the script starts and ends, and when something was last drawn.
WATCH = """
window.seen = {runs: 0, ended: 0, drawn: 0, first: 0, running: false};
const look = () => {
  const app = document.querySelector('[data-testid=stApp]');
  const running = app ? app.getAttribute('data-test-script-state') === 'running' : true;
  if (running && !seen.running && app) seen.runs += 1;
  if (!running && seen.running) seen.ended = performance.now();
  if (app) seen.running = running;
  const shown = '.main-svg, [data-testid=stDataFrame] canvas';
  if (!seen.first && document.querySelector('h1') && document.querySelector(shown)) seen.first = performance.now();
};
new MutationObserver(records => {
  if (records.some(each => each.addedNodes.length)) seen.drawn = performance.now();
  look();
}).observe(document, {subtree: true, childList: true, attributes: true, attributeFilter: ['data-test-script-state']});
"""
SETTLED = f"""() => seen.runs && !seen.running && seen.ended && !document.querySelector('[data-testid=stSkeleton]')
  && performance.now() - Math.max(seen.drawn, seen.ended) > {QUIET_MS}"""
# Streamlit's client looks for its server below the page's own path before it looks at the root.
PROBES = re.compile(r"//[^/]+/[^/]+/_stcore/(health|host-config)$")


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds: what the reader waited, the server's processor time, and of a visit until the first paint."""

    wall_s: float
    server_s: float
    first_s: float | None = None


@dataclass(frozen=True, slots=True)
class Server:
    """A dashboard that is being served. `log` is what it wrote."""

    address: str
    process: subprocess.Popen[bytes]
    log: Path

    def processor_s(self) -> float:
        used = psutil.Process(self.process.pid).cpu_times()
        return float(used.user + used.system)


@contextmanager
def served(url: str, log: Path) -> Iterator[Server]:
    """Serve the dashboard of a database on a free port, and end it after use."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with log.open("wb") as out:
        process = subprocess.Popen(command(port), env=environment(url), stdout=out, stderr=subprocess.STDOUT)
    try:
        server = Server(f"http://127.0.0.1:{port}", process, log)
        _wait_for(server)
        yield server
    finally:
        process.terminate()
        process.wait(20)


def _wait_for(server: Server, seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and server.process.poll() is None:
        try:
            with urllib.request.urlopen(f"{server.address}/_stcore/health", timeout=5):
                return
        except OSError:
            time.sleep(0.2)
    raise TimeoutError(f"the dashboard did not start: {server.log.read_text(errors='replace')[-2000:]}")


@dataclass
class Tab:
    """One tab on a served dashboard. `complaints` gathers console errors, exceptions and failed requests."""

    server: Server
    page: Any
    complaints: list[str] = field(default_factory=list)

    @classmethod
    def open(cls, browser: Any, server: Server, **settings: Any) -> Tab:
        tab = cls(server, browser.new_page(**{"viewport": {"width": 1280, "height": 1000}, **settings}))
        tab.page.add_init_script(WATCH)

        def said(url: str, words: str) -> None:
            if not PROBES.search(url):
                tab.complaints.append(f"{words} ({url})")

        def console(message: Any) -> None:
            if message.type == "error":
                said(message.location["url"], message.text)

        tab.page.on("console", console)
        tab.page.on("pageerror", lambda error: said("", str(error)))
        tab.page.on("requestfailed", lambda request: said(request.url, str(request.failure)))
        tab.page.on("response", lambda it: said(it.url, str(it.status)) if it.status >= 400 else None)
        return tab

    def visit(self, path: str, timeout_s: float = 60) -> Timing:
        """Open a page and wait until all of it is there."""
        before = self.server.processor_s()
        self.page.goto(f"{self.server.address}/{path}")
        self.settle(timeout_s)
        first = self.page.evaluate("seen.first || seen.ended")  # a page without a table or a chart is its text
        return Timing(self._last_ms() / 1000, self.server.processor_s() - before, first / 1000)

    def settle(self, timeout_s: float = 60) -> None:
        self.page.wait_for_function(SETTLED, timeout=1000 * timeout_s, polling=50)

    def timed(self, act: Any, timeout_s: float = 60) -> Timing | None:
        """Do something that makes the page run again, and wait until it has; None if it didn't."""
        before, runs = self.server.processor_s(), self.page.evaluate("seen.runs")
        begin = self.page.evaluate("performance.now()")
        act()
        try:
            self.page.wait_for_function(f"seen.runs > {runs}", timeout=1000 * ANSWERS_S, polling=20)
        except Exception as error:
            if "Timeout" not in type(error).__name__:
                raise
            return None
        self.settle(timeout_s)
        return Timing((self._last_ms() - begin) / 1000, self.server.processor_s() - before)

    def _last_ms(self) -> float:
        return float(self.page.evaluate("Math.max(seen.drawn, seen.ended)"))

    def filters(self) -> Iterator[tuple[str, Timing]]:
        """Turn each control of the page to its next value, one after the other, and time the page's answer."""
        page, main = self.page, self.page.locator("[data-testid=stMain]")
        for box in self._each(main.locator("[data-testid=stSelectbox]")):
            label = box.locator("label").first.inner_text()
            choices = self._opened(box)
            page.keyboard.press("ArrowDown")
            timing = self.timed(lambda: page.keyboard.press("Enter")) if choices > 1 else None
            if timing:
                yield label, timing
            else:
                page.keyboard.press("Escape")
        for button in self._each(main.locator("[data-testid=stButtonGroup] button")):
            if "Active" not in (button.get_attribute("kind") or "") and (timing := self.timed(button.click)):
                yield f"view {button.inner_text()}", timing
        for box in self._each(main.locator("[data-testid=stTextInput]")):
            label = box.locator("label").first.inner_text()
            box.locator("input").press("End")
            box.locator("input").press_sequentially("1")
            if timing := self.timed(lambda: page.keyboard.press("Enter")):
                yield label, timing

    def _opened(self, box: Any, attempts: int = 8) -> int:
        """Open the list of a select box and return how many choices are in it, as far as they are drawn."""
        options = self.page.locator("[role=listbox] [role=option]")
        box.scroll_into_view_if_needed()
        for _ in range(attempts):
            self.page.wait_for_timeout(150)  # a list closes when the page moves, and scrolling takes a moment
            box.locator("input").click()
            self.page.wait_for_timeout(250)
            if options.count():
                return int(options.count())
        raise TimeoutError(f"the list of {box.inner_text()!r} doesn't open")

    @staticmethod
    def _each(found: Any) -> Iterator[Any]:
        """One after the other; a choice may take away those that come after it."""
        for index in range(found.count()):
            if index < found.count() and found.nth(index).is_visible():
                yield found.nth(index)

    def close(self) -> None:
        self.page.close()
