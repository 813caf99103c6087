"""From a database's cells to the charts of a page, each with the words that say what it shows."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from db.queries import CellSummary
from jobs.papers.charts import Pair, Panel, Point, Series, dumbbells, lines, scatter
from jobs.papers.hierarchy import EVICT, HBM, SERIES, tiers
from jobs.papers.kinds import FULL, Published
from jobs.papers.settings import Setting
from jobs.papers.tables import applies, percent


@dataclass(frozen=True)
class Drawn:
    """An SVG and its words; `front`: the labels of what it numbers, by panel."""

    svg: str
    alt: str
    front: tuple[tuple[str, tuple[str, ...]], ...] = ()


def cliff(settings: Sequence[Setting]) -> Drawn | None:
    """Accuracy along the eviction ratio and along the HBM ratio; None without two levels of either."""
    levels = tuple(dict.fromkeys((0.0, *EVICT, *SERIES)))
    grid = {(hbm, evict): cell for hbm in HBM for evict in levels if (cell := _cell(settings, hbm, evict))}
    evicting = [
        Series(f"HBM {100 * hbm:g}%", _points((evict, grid.get((hbm, evict))) for evict in sorted(levels)))
        for hbm in HBM
    ]
    holding = [
        Series(f"evict {100 * evict:g}%", _points((hbm, grid.get((hbm, evict))) for hbm in HBM))
        for evict in sorted(levels)
    ]
    panels = [
        Panel(title, label, tuple(series))
        for title, label, all_series in (
            ("The cliff: along eviction", "evict ratio at each event, %", evicting),
            ("The flat line: along HBM", "HBM ratio, %", holding),
        )
        if (series := [each for each in all_series if len(each.points) > 1])
    ]
    if not panels:
        return None
    return Drawn(lines("Accuracy of the hierarchy by eviction and HBM ratio", panels), _lines_in_words(panels))


def _cell(settings: Sequence[Setting], hbm: float, evict: float) -> CellSummary | None:
    found = (setting.find(tiers(hbm, evict)) for setting in settings)
    return next((cell for cell in found if cell is not None and cell.accuracy is not None), None)


def _points(cells: Iterable[tuple[float, CellSummary | None]]) -> tuple[Point, ...]:
    return tuple(_point(100 * ratio, cell) for ratio, cell in cells if cell is not None)


def _point(x: float, cell: CellSummary) -> Point:
    value = cell.accuracy or 0.0
    low, high = (value if end is None else end for end in (cell.accuracy_low, cell.accuracy_high))
    return Point(x, 100 * value, 100 * low, 100 * high)


def _lines_in_words(panels: Sequence[Panel]) -> str:
    said = []
    for panel in panels:
        series = "; ".join(
            f"{each.name}: " + ", ".join(f"{point.y:.1f} at {point.x:g}" for point in each.points)
            for each in panel.series
        )
        said.append(f"{panel.title} ({panel.x_label}). Accuracy in percent by line: {series}.")
    return " ".join(said)


def cost(cells: Sequence[CellSummary]) -> Drawn | None:
    """Accuracy against the bytes of a sequence, of all policies; None where no bytes were measured."""
    panels, fronts = [], []
    for title, share in (
        ("Device bytes", device_share),
        ("Device and host bytes", all_share),
    ):
        # Rounded: what is equal is to be equal, however it was summed up.
        known = [(cell, round(100 * x, 9)) for cell in cells if cell.accuracy is not None and (x := share(cell))]
        if not known:
            return None
        points = {cell.fingerprint: _point(x, cell) for cell, x in known}
        names = dict.fromkeys(cell.policy_name for cell, _ in known)
        series = tuple(
            Series(name, tuple(points[cell.fingerprint] for cell, _ in known if cell.policy_name == name))
            for name in names
        )
        best = front(known)
        panels.append(Panel(title, "% of the full cache's, mean", series, tuple(points[c.fingerprint] for c in best)))
        fronts.append((title, tuple(_said(cell, points[cell.fingerprint]) for cell in best)))
    words = f"Accuracy in percent of {len(cells)} cells against the bytes of a sequence. The front is listed below."
    return Drawn(scatter("Accuracy against bytes held", panels), words, tuple(fronts))


def device_share(cell: CellSummary) -> float | None:
    """Device bytes over the full cache's."""
    return cell.resident_share


def all_share(cell: CellSummary) -> float | None:
    """Device and host bytes over the full cache's; None where either wasn't measured."""
    if cell.resident_bytes is None or cell.ddr_bytes is None or not cell.full_bytes:
        return None
    return (cell.resident_bytes + cell.ddr_bytes) / cell.full_bytes


def front(cells: Sequence[tuple[CellSummary, float]]) -> list[CellSummary]:
    """Of (cell, cost) those that no other beats in accuracy at no more cost, the cheapest first.

    Among equals the full cache.
    """

    def order(each: tuple[CellSummary, float]) -> tuple[float, float, bool, str]:
        cell, cost = each
        return cost, -(cell.accuracy or 0.0), cell.policy_name != "full", cell.policy

    best: list[CellSummary] = []
    for cell, _ in sorted(cells, key=order):
        if not best or (cell.accuracy or 0.0) > (best[-1].accuracy or 0.0):
            best.append(cell)
    return best


def _said(cell: CellSummary, point: Point) -> str:
    return f"{cell.policy} ({percent(cell.accuracy)} at {point.x:.1f}% of the bytes)"


def versus(setting: Setting, table: Published) -> Drawn | None:
    """The published differences from the full cache beside ours; None where there is nothing to compare."""
    full = next((value for pick, value in table.rows if pick == FULL), None)
    if full is None or not applies(setting, table):
        return None
    group = setting.group
    measured = {cell.fingerprint: each for cell, each in zip(setting.cells, group.cells, strict=True)}
    pairs = []
    for pick, value in table.rows:
        cell = setting.find(pick)
        found = measured[cell.fingerprint].versus if cell is not None else None
        if cell is not None and found is not None:
            ours = Point(100 * found.difference, 0.0, 100 * found.low, 100 * found.high)
            pairs.append(Pair(cell.policy, value - full, ours))
    if not pairs:
        return None
    here, there = sorted(pair.ours.x for pair in pairs), sorted(pair.theirs for pair in pairs)
    words = (
        f"{table.title}: points from the full cache of {len(pairs)} policies, {there[0]:+.1f} to {there[-1]:+.1f} "
        f"published, {here[0]:+.1f} to {here[-1]:+.1f} here. Each value is in the table beside the published one below."
    )
    return Drawn(dumbbells(f"{table.title}: published and ours", pairs), words)
