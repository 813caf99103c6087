"""How long each page of the dashboard takes: its first paint, and each of its filters and views.

    python benchmarks/dashboard_speed.py [DATABASE] [--pages compare samples] [--turns 3] [--json out.json]

Without DATABASE one of 2,000 cells and 200,000 samples is made first. Needs Chromium and playwright. A first paint is
the time from opening a page until its title and the first of its tables or charts are seen; `all of it`, until the last
one is drawn; a filter, from choosing a value until the same. All are medians over the turns, the server having answered
once before. `server` is the processor time of the server in it. Exit code 1 if a first paint takes over 2 s or a filter
over 1 s.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from browsing import CHROMIUM, Server, Tab, Timing, served

from dashboard.pages import PAGES

PAINT_S, FILTER_S = 2.0, 1.0
PAINT, WHOLE = "first paint", "all of it"


def measure(browser: Any, server: Server, path: str, turns: int) -> dict[str, list[Timing]]:
    """Action on a page -> a timing for each turn."""
    found: dict[str, list[Timing]] = {}
    tab = Tab.open(browser, server)
    for turn in range(turns + 1):
        visit = tab.visit(path)
        first = Timing(visit.first_s or visit.wall_s, visit.server_s)
        taken = [(PAINT, first), (WHOLE, visit), *tab.filters()]
        for action, timing in taken if turn else ():  # the first turn warms the server up
            found.setdefault(action, []).append(timing)
    for complaint in sorted(set(tab.complaints)):
        print(complaint, file=sys.stderr)
    tab.close()
    return found


def rows(path: str, found: dict[str, list[Timing]]) -> list[dict[str, Any]]:
    """One row an action: medians in seconds."""
    made = []
    for action, timings in found.items():
        wall = statistics.median(timing.wall_s for timing in timings)
        server = statistics.median(timing.server_s for timing in timings)
        limit = {PAINT: PAINT_S, WHOLE: None}.get(action, FILTER_S)
        made.append({"page": path, "action": action, "wall_s": wall, "server_s": server, "limit_s": limit})
    return made


def is_late(row: dict[str, Any]) -> bool:
    return row["limit_s"] is not None and row["wall_s"] > row["limit_s"]


def show(row: dict[str, Any]) -> None:
    late = f"  over {row['limit_s']:g} s" if is_late(row) else ""
    times = f"{row['wall_s']:6.2f} s   server {row['server_s']:5.2f} s"
    print(f"{row['page']:12} {row['action'][:44]:44} {times}{late}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("database", nargs="?")
    parser.add_argument("--pages", nargs="+", default=[page.path for page in PAGES])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder:
        url = asked.database
        if url is None:
            from big_store import fill

            url = str(Path(folder) / "big.db")
            fill(url)
        with served(url, Path(folder) / "server.log") as server, sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            made = []
            for path in asked.pages:
                made += rows(path, measure(browser, server, path, asked.turns))
                for row in made:
                    if row["page"] == path:
                        show(row)
            browser.close()
    if asked.json:
        asked.json.write_text(json.dumps({"rows": made}, indent=1))
    sys.exit(1 if any(map(is_late, made)) else 0)


if __name__ == "__main__":
    main()
