"""The report's tables of cells: every number with its interval, and every dash with its reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields

from dashboard.fronts import on_front
from dashboard.static_report.content import Group
from dashboard.static_report.markup import Column, Value, table
from dashboard.tables import why_missing
from dashboard.wording import human_bytes, percent
from db.queries import CellSummary, DiagnosticSummary, PairedDelta

DASH = "–"
COLUMNS = (
    Column("policy"),
    Column("n", True, "judged samples: all but the failed"),
    Column("accuracy % [95%]", True),
    Column("vs full, points [95%]", True, "difference from the full cache, paired by sample"),
    Column("pairs", True),
    Column("gained", True, "right only here"),
    Column("lost", True, "right only with the full cache"),
    *(Column(name, True) for name in ("right", "wrong", "none", "cut", "failed")),
    Column("device KV", True, "logical bytes of one sequence in device memory, mean over its decoding"),
    Column("of full", True, "device KV over what the full cache holds at the same steps"),
    Column("host KV", True),
    Column("packed KV", True, "quantised, part of device KV"),
    Column("evicted KV", True, "gone at a sequence's end"),
    Column("metadata", True, "positions, scores and the like at their peak"),
    Column("decode tok/s", True, "all rows of a batch together; *: another engine used the node"),
    Column("TPOT p50 ms", True),
    Column("TPOT p99 ms", True),
    Column("TTFT ms", True),
    Column("rows", True, "largest batch"),
    Column("transfers", True, "share of decode time in which bytes crossed the bus"),
    Column("bandwidth", True, "share of the memory's copy bandwidth that decode steps read"),
    Column("front"),
    Column("why a dash"),
    Column("fingerprint"),
)
DIAGNOSTICS = {field.name: field.name.replace("_", " ") for field in fields(DiagnosticSummary)}
SHARES = ("diverged_share",)
COUNTS = ("diagnosed",)


def cell_table(group: Group) -> str:
    """One row a cell, in the sweep's order."""
    front = on_front(group.cells)
    rows = [_row(cell, group, cell.fingerprint in front) for cell in group.cells]
    return table(f"All {len(rows)} cells of {group.title}", COLUMNS, rows, sortable=True)


def diagnostic_table(group: Group, found: Mapping[str, DiagnosticSummary]) -> str:
    """One row a diagnosed cell; empty where there is none."""
    measured = [cell for cell in group.cells if cell.fingerprint in found]
    if not measured:
        return ""
    columns = [Column("policy"), *(Column(name, True) for name in DIAGNOSTICS.values())]
    rows = [
        [Value(cell.policy), *(_measure(name, getattr(found[cell.fingerprint], name)) for name in DIAGNOSTICS)]
        for cell in measured
    ]
    caption = f"Diagnostics of {len(rows)} of {len(group.cells)} cells of {group.title}, means over diagnosed samples"
    return table(caption, columns, rows, sortable=True)


def accuracy(cell: CellSummary) -> str:
    """Return `62.0 [52.2, 70.9]` in per cent, or a dash."""
    return _ranged(cell.accuracy, cell.accuracy_low, cell.accuracy_high, ".1f")


def difference(delta: PairedDelta | None) -> str:
    """Return `-3.0 [-5.1, -0.9]` in percentage points, or a dash."""
    return DASH if delta is None else _ranged(delta.delta, delta.low, delta.high, "+.1f")


def reasons(cell: CellSummary, group: Group) -> str:
    """Return why a row has dashes, all of them."""
    told = [why_missing(cell)]
    if cell is not group.full and cell.n and cell.fingerprint not in group.deltas:
        if group.full is None:
            told.append("no difference: the full cache wasn't run under this protocol")
        else:
            told.append("no difference: no judged sample in common with the full cache")
    elif cell is group.full:
        told.append("no difference: it is the baseline")
    if cell.n:
        unmeasured = {
            "accuracy intervals need two samples": cell.accuracy_low is None,
            "host, packed or evicted bytes were not recorded": None
            in (cell.ddr_bytes, cell.packed_bytes, cell.evicted_bytes),
            "metadata wasn't recorded": cell.metadata_bytes_peak is None,
            "TTFT wasn't recorded": cell.ttft_s is None,
        }
        if cell.shards:
            unmeasured |= {
                "TPOT wasn't recorded": None in (cell.tpot_p50_s, cell.tpot_p99_s),
                "no time of transfers: the device has no bus, or it wasn't timed": cell.transfer_share is None,
                "memory bandwidth wasn't measured": cell.bandwidth_share is None,
            }
        told += [reason for reason, missing in unmeasured.items() if missing]
    return "; ".join(filter(None, told))


def _row(cell: CellSummary, group: Group, on_the_front: bool) -> list[Value]:
    delta = group.deltas.get(cell.fingerprint)
    counts = (cell.correct, cell.wrong, cell.no_answer, cell.truncated, cell.failed)
    pairs = (None, None, None) if delta is None else (delta.pairs, delta.gained, delta.lost)
    n = f"{cell.n}" if cell.expected is None or cell.n >= cell.expected else f"{cell.n} of {cell.expected}"
    star = "*" if cell.exclusive is False else ""
    sizes = (cell.ddr_bytes, cell.packed_bytes, cell.evicted_bytes, cell.metadata_bytes_peak)
    return [
        Value(cell.policy),
        Value(n, cell.n),
        Value(accuracy(cell), cell.accuracy),
        Value(difference(delta), None if delta is None else delta.delta),
        *(_count(count) for count in pairs),
        *(_count(count) for count in counts),
        _bytes(cell.resident_bytes),
        _share(cell.resident_share),
        *(_bytes(size) for size in sizes),
        _number(cell.decode_tokens_per_s, ",.0f", star),
        *(_number(each and 1000 * each, ",.2f") for each in (cell.tpot_p50_s, cell.tpot_p99_s, cell.ttft_s)),
        _count(cell.max_rows),
        _share(cell.transfer_share),
        _share(cell.bandwidth_share),
        Value("yes" if on_the_front else ""),
        Value(reasons(cell, group)),
        Value(cell.fingerprint),
    ]


def _measure(name: str, value: float | None) -> Value:
    if name in COUNTS:
        return _count(None if value is None else int(value))
    if name in SHARES:
        return _share(value)
    return _number(value, ".4g")


def _ranged(value: float | None, low: float | None, high: float | None, form: str) -> str:
    if value is None:
        return DASH
    around = DASH if low is None or high is None else f"{100 * low:{form}}, {100 * high:{form}}"
    return f"{100 * value:{form}} [{around}]"


def _count(count: int | None) -> Value:
    return Value(DASH if count is None else f"{count:,}", count)


def _bytes(count: float | None) -> Value:
    return Value(DASH if count is None else human_bytes(count), count)


def _share(share: float | None) -> Value:
    return Value(DASH if share is None else percent(share), share)


def _number(value: float | None, form: str, after: str = "") -> Value:
    return Value(DASH if value is None else f"{value:{form}}{after}", value)


def best(cells: Sequence[CellSummary]) -> CellSummary | None:
    """Return the cell with the least share of the full cache's bytes, of those for which it was measured."""
    known = [cell for cell in cells if cell.resident_share is not None]
    return min(known, key=lambda cell: (cell.resident_share or 0.0, cell.policy), default=None)
