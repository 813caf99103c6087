"""Every measure of memory and speed as a table, with the reason of each dash."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import streamlit as st

from dashboard.roofline import why_not
from dashboard.transfers import moved
from db.queries import CellSpeed, CellSummary, DeviceSpeed, Quantiles


def speed_table(
    cells: Sequence[CellSummary], speeds: Mapping[str, CellSpeed], devices: Sequence[DeviceSpeed]
) -> pd.DataFrame:
    """One row a cell, the fastest decoding first; what has no throughput comes last."""
    ordered = sorted(cells, key=lambda c: (c.decode_tokens_per_s is None, -(c.decode_tokens_per_s or 0.0), c.policy))
    traffic = moved(devices)
    own: dict[str, list[DeviceSpeed]] = {}
    for each in devices:
        own.setdefault(each.fingerprint, []).append(each)
    rows = []
    for cell in ordered:
        speed, places = speeds.get(cell.fingerprint), own.get(cell.fingerprint, [])
        found = traffic.get(cell.fingerprint)
        per_token = found and found.per_token
        rows.append(
            {
                "policy": cell.policy,
                "n": cell.n,
                "decode tokens/s": cell.decode_tokens_per_s,
                **_spread("TTFT", speed and speed.ttft_s),
                **_spread("TPOT", speed and speed.tpot_s),
                "step p50 (ms)": _milli(cell.tpot_p50_s),
                "step p99 (ms)": _milli(cell.tpot_p99_s),
                "of the roof": _only(places, "roof_share"),
                "bytes read a token": _whole(_only(places, "bytes_per_token")),
                "mean HBM bytes": _whole(cell.hbm_bytes),
                "mean packed bytes": _whole(cell.packed_bytes),
                "mean host bytes": _whole(cell.ddr_bytes),
                "mean full bytes": _whole(cell.full_bytes),
                "peak HBM bytes": _whole(speed and speed.hbm_bytes_peak),
                "largest HBM bytes": speed and speed.hbm_bytes_most,
                "peak full bytes": _whole(speed and speed.full_bytes_end),
                "peak metadata bytes": _whole(speed and speed.metadata_bytes_peak),
                "batch peak bytes": max(
                    (p.allocated_bytes_peak for p in places if p.allocated_bytes_peak), default=None
                ),
                "device peak bytes": cell.device_peak_bytes,
                "to host a token": _whole(per_token and per_token[0]),
                "to device a token": _whole(per_token and per_token[1]),
                "transfer share": found and found.share,
                "largest batch": cell.max_rows,
                "node": {None: "", True: "exclusive", False: "shared"}[cell.exclusive],
                "device": ", ".join(cell.devices),
                "missing": why_dashes(cell, speed, places),
            }
        )
    return pd.DataFrame(rows)


def why_dashes(cell: CellSummary, speed: CellSpeed | None, places: Sequence[DeviceSpeed]) -> str:
    """Return why a row has dashes; empty where it has none."""
    if speed is None:
        return "all samples failed" if cell.failed else "no sample finished yet"
    reasons = []
    if cell.hbm_bytes is None or speed.hbm_bytes_peak is None:
        reasons.append("bytes were not recorded")
    if speed.ttft_s is None:
        reasons.append("no TTFT: not recorded")
    if speed.tpot_s is None:
        reasons.append("no TPOT: no sample with two timed tokens")
    if not places:
        reasons.append("no throughput, traffic or roof: no shard has ended")
    else:
        reasons += sorted({f"no roof: {why}" for each in places if (why := why_not(each))})
        if len(places) > 1:
            reasons.append("no single roof: several kinds of device")
        if all(each.transfer_s is None for each in places):
            reasons.append("no transfer share: no bus, or its time wasn't measured")
        if cell.device_peak_bytes is None:
            reasons.append("no device peak: the device doesn't count")
    return "; ".join(reasons)


def columns(table: pd.DataFrame) -> dict[str, Any]:
    """Return how the columns are shown."""
    config: dict[str, Any] = {}
    for name in table.columns:
        if "bytes" in name or name.endswith("a token"):
            config[name] = st.column_config.NumberColumn(format="localized")
        elif name.endswith("(ms)"):
            config[name] = st.column_config.NumberColumn(format="%.2f")
        elif name in ("of the roof", "transfer share"):
            config[name] = st.column_config.NumberColumn(format="percent")
    config["decode tokens/s"] = st.column_config.NumberColumn(format="%.1f")
    config["policy"] = st.column_config.TextColumn(pinned=True)
    config["missing"] = st.column_config.TextColumn(help="why the row has dashes")
    return config


def _spread(name: str, found: Quantiles | None) -> dict[str, float | int | None]:
    return {
        f"{name} samples": found and found.n,
        f"{name} mean (ms)": _milli(found and found.mean),
        **{f"{name} p{percent} (ms)": _milli(found and found.at[percent]) for percent in (50, 95, 99)},
    }


def _only(places: Sequence[DeviceSpeed], name: str) -> float | None:
    """A value that belongs to one kind of device; None over several, which no single number describes."""
    return getattr(places[0], name) if len(places) == 1 else None


def _milli(seconds: float | None) -> float | None:
    return None if seconds is None else 1000 * seconds


def _whole(count: float | None) -> int | None:
    return None if count is None else round(count)
