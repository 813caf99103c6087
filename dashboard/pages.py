"""The pages of the dashboard, in the order in which they are shown. One list: the app serves it, the tests visit it."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module


@dataclass(frozen=True, slots=True)
class Page:
    """One page: `page()` of the module, served at /`path`. Its heading is the title."""

    path: str
    title: str
    icon: str
    module: str
    needs_database: bool = True

    def show(self) -> None:
        """Draw the page. Its module is only imported now, so that no page waits for what another one needs."""
        import_module(f"dashboard.{self.module}").page()


PAGES = (
    Page("sweeps", "Sweeps", ":material/grid_on:", "sweeps_page"),
    Page("compare", "Compare", ":material/scatter_plot:", "compare_page"),
    Page("speed", "Memory & speed", ":material/speed:", "speed_page"),
    Page("samples", "Samples", ":material/article:", "samples_page"),
    Page("diagnostics", "Diagnostics", ":material/troubleshoot:", "diagnostics_page"),
    Page("papers", "Papers", ":material/fact_check:", "papers_page"),
    Page("advice", "Which policy?", ":material/rule:", "advice_page"),
    Page("capacity", "Capacity", ":material/memory:", "capacity_page", needs_database=False),
)
