"""The tables: query results in, pandas frames out. No Streamlit here. Numbers stay numbers, units in the name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Literal

import pandas as pd

from dashboard.fronts import on_front
from db.queries import CellProgress, CellSummary, EventInfo, PairedDelta, SampleInfo, SweepInfo

STATE_MARKS = {
    "running": "▶ running",
    "finished": "✔ finished",
    "done": "✔ done",
    "waiting": "… waiting",
    "partial": "◐ partly failed",
    "failed": "✘ failed",
    "paused": "‖ paused",
    "interrupted": "■ interrupted",
    "cancelled": "■ cancelled",
    "silent": "? no heartbeat",
}
FORMULA_STARTS = tuple("=+-@\t\r\n＝＋－＠")  # spreadsheets take the wide ones too
STATE_ORDER = ("running", "failed", "partial", "waiting", "done")


def list_height(rows: int) -> Literal["content"] | int:
    """Return a table's height: all of a list that can be taken in at a glance, else a part that scrolls."""
    return "content" if rows <= 24 else 600


def sweep_table(sweeps: Sequence[SweepInfo], now: datetime) -> pd.DataFrame:
    """One row a sweep, the newest first."""
    columns = [
        "state",
        "sweep",
        "progress",
        "done",
        "failed",
        "expected",
        "cells",
        "started",
        "last sign of life",
        "id",
    ]
    rows = [
        [
            STATE_MARKS[sweep.live_state(now)],
            sweep.name,
            (sweep.done + sweep.failed) / sweep.expected if sweep.expected else 0.0,
            sweep.done,
            sweep.failed,
            sweep.expected,
            sweep.cells,
            sweep.created_at,
            sweep.heartbeat_at,
            sweep.id,
        ]
        for sweep in sweeps
    ]
    return pd.DataFrame(rows, columns=columns)


def progress_table(cells: Sequence[CellProgress], by_state: bool = True) -> pd.DataFrame:
    """One row a cell: what runs first, then what failed, what waits, what is done; in the given order within.

    `by_state=False`: in the given order alone, in which rows stay where they are while cells come to an end.
    """
    if by_state:
        cells = sorted(cells, key=lambda cell: (STATE_ORDER.index(cell.state), cell.position))
    columns = [
        "state",
        "model",
        "benchmark",
        "policy",
        "progress",
        "done",
        "failed",
        "expected",
        "shards",
        "protocol",
        "fingerprint",
    ]
    rows = [
        [
            STATE_MARKS[cell.state],
            cell.model,
            cell.benchmark,
            cell.policy,
            (cell.done + cell.failed) / cell.expected if cell.expected else 0.0,
            cell.done,
            cell.failed,
            cell.expected,
            cell.shards,
            cell.protocol[:8],
            cell.fingerprint,
        ]
        for cell in cells
    ]
    return pd.DataFrame(rows, columns=columns)


def event_table(events: Sequence[EventInfo]) -> pd.DataFrame:
    """One row an event, the newest first."""
    rows = [[event.at, event.kind, event.message, (event.fingerprint or "")[:8]] for event in events]
    return pd.DataFrame(rows, columns=["at", "kind", "message", "cell"])


def summary_table(cells: Sequence[CellSummary], deltas: Mapping[str, PairedDelta] | None = None) -> pd.DataFrame:
    """Every metric of every cell. `deltas` compare with the full cache of the same protocol, paired by sample."""
    front = on_front(cells)
    rows = []
    for cell in cells:
        delta = (deltas or {}).get(cell.fingerprint)
        rows.append(
            {
                "policy": cell.policy,
                "protocol": cell.protocol,
                "n": cell.n,
                "on front": cell.fingerprint in front,
                "accuracy": cell.accuracy,
                "accuracy low": cell.accuracy_low,
                "accuracy high": cell.accuracy_high,
                "vs full": delta.delta if delta else None,
                "vs full low": delta.low if delta else None,
                "vs full high": delta.high if delta else None,
                "pairs": delta.pairs if delta else None,
                "truncated": cell.truncation_rate,
                "resident bytes": _whole(cell.resident_bytes),
                "resident share": cell.resident_share,
                "kept tokens": cell.kept_share,
                "host bytes": _whole(cell.ddr_bytes),
                "packed bytes": _whole(cell.packed_bytes),
                "evicted bytes": _whole(cell.evicted_bytes),
                "full bytes": _whole(cell.full_bytes),
                "metadata bytes": _whole(cell.metadata_bytes_peak),
                "decode tokens/s": cell.decode_tokens_per_s,
                "prefill tokens/s": cell.prefill_tokens_per_s,
                "TPOT p50 (s)": cell.tpot_p50_s,
                "TPOT p99 (s)": cell.tpot_p99_s,
                "TTFT (s)": cell.ttft_s,
                "output tokens": cell.output_tokens,
                "largest batch": cell.max_rows,
                "bytes to host": cell.bytes_to_host,
                "bytes to device": cell.bytes_to_device,
                "bandwidth share": cell.bandwidth_share,
                "transfer share": cell.transfer_share,
                "device peak bytes": cell.device_peak_bytes,
                "peak measured by": ", ".join(cell.device_peak_sources),
                "device": ", ".join(cell.devices),
                "node": {None: "", True: "exclusive", False: "shared"}[cell.exclusive],
                **{name: getattr(cell, name) for name in ("correct", "wrong", "no_answer", "failed")},
                "problems": cell.problems,
                "missing": why_missing(cell),
                "model": cell.model,
                "benchmark": cell.benchmark,
                "fingerprint": cell.fingerprint,
            }
        )
    return pd.DataFrame(rows)


def why_missing(cell: CellSummary) -> str:
    """Return why a cell's row has dashes; empty where it has none of weight."""
    if cell.n == 0:
        return "all samples failed" if cell.failed else "no sample finished yet"
    reasons = []
    if cell.resident_bytes is None:
        reasons.append("bytes were not recorded")
    elif cell.resident_share is None:
        reasons.append("the full cache's bytes were not recorded")
    if cell.decode_tokens_per_s is None:
        reasons.append("no throughput: no shard has ended")
    return "; ".join(reasons)


def sample_table(samples: Sequence[SampleInfo]) -> pd.DataFrame:
    """One row a sample, without its long texts."""
    columns = [
        "problem",
        "repeat",
        "outcome",
        "extracted",
        "reference",
        "output tokens",
        "ended by",
        "evicted tokens",
        "wall (s)",
        "error",
    ]
    rows = [
        [
            sample.problem_id,
            sample.repeat,
            sample.outcome,
            sample.extracted,
            sample.reference,
            sample.output_tokens,
            sample.finish_reason,
            sample.evicted_tokens,
            sample.wall_s,
            sample.error,
        ]
        for sample in samples
    ]
    return pd.DataFrame(rows, columns=columns)


def _whole(count: float | None) -> int | None:
    return None if count is None else round(count)


def csv_safe(frame: pd.DataFrame) -> bytes:
    """Return a frame as CSV in which no text cell starts a formula when a spreadsheet opens it."""
    safe = frame.map(lambda value: f"'{value}" if isinstance(value, str) and value[:1] in FORMULA_STARTS else value)
    text: str = safe.to_csv(index=False)
    return text.encode("utf-8", "replace")
