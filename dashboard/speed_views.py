"""The parts of the page on memory and speed, one question each, over cells of one protocol."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import streamlit as st

from dashboard import data, roofline, speed_figures, tier_bytes, transfers
from dashboard.choices import choice_key, choose, remember, remembered
from dashboard.colours import Look
from dashboard.drawing import FULL
from dashboard.limits import LISTED, limited
from dashboard.show import show
from db.queries import CellSpeed, CellSummary, DeviceSpeed, TierMapInfo

PEAKS = {"mean": "mean over decoding", "peak": "peak"}
MEASURES = {"ttft": "to the first token", "tpot": "for each further token"}
MOST_PANELS = 6


def tiers(cells: list[CellSummary], speeds: Mapping[str, CellSpeed]) -> None:
    with st.columns(3)[0]:
        peak = choose("Bytes", list(PEAKS), "bytes", PEAKS.__getitem__) == "peak"
    which: tier_bytes.Which = "peak" if peak else "mean"
    cells, too_many = limited(cells, LISTED, "The chart shows")
    figure = tier_bytes.tier_bars(cells, speeds, which)
    show(figure, alt=tier_bytes.bars_in_words(cells, speeds, which), name=f"{which} bytes by tier")
    notes = [
        *too_many,
        "Logical KV bytes of one sequence, counted by the ledger; below each bar what the full cache holds.",
    ]
    missing = sum(tier_bytes.parts(cell, speeds.get(cell.fingerprint), which) is None for cell in cells)
    if peak:
        notes.append(
            "The peak is the most that a sequence held at once in device memory, before an event made room; with it "
            "the most that scores and other fields took. Peaks of the other tiers are in tier maps."
        )
        if quantised := sum(bool(cell.packed_bytes) for cell in cells):
            notes.append(f"Not in the chart, since the peak of quantised bytes isn't recorded: {quantised} policies.")
            missing -= quantised
    st.caption(" ".join([*notes, *_left_out(missing, "recorded bytes"), *_counted(cells, speeds)]))


def _counted(cells: list[CellSummary], speeds: Mapping[str, CellSpeed]) -> list[str]:
    """Say where means are over fewer samples than the cell has."""
    fewer = [s for cell in cells if (s := speeds.get(cell.fingerprint)) and 0 < s.peaks < s.n]
    return (
        [f"In {len(fewer)} policies some samples have no recorded bytes; means are over the others."] if fewer else []
    )


def _left_out(count: int, lacking: str) -> list[str]:
    return [f"Policies without {lacking}, missing from the chart: {count}."] if count else []


def over_time(source: data.Source, cells: list[CellSummary], sweep_ids: tuple[str, ...]) -> None:
    own = {cell.fingerprint: cell for cell in cells}
    there = [info for info in data.tier_maps(source.key, source.engine, sweep_ids) if info.fingerprint in own]
    if not there:
        st.info("No sample of this selection has a tier map", icon=":material/timeline:")
        st.text(
            "A sweep keeps maps of each cell's first problems if its file says so; stored samples stay as they are:"
        )
        st.code("tier_maps: 3", language="yaml")
        return
    problems = list(dict.fromkeys(f"{info.repeat}:{info.problem_id}" for info in there))
    with st.columns(3)[0]:
        problem = choose("Problem", problems, "mapped", lambda key: key.partition(":")[2])
    found = {info.fingerprint: info for info in there if f"{info.repeat}:{info.problem_id}" == problem}
    picked = _policies(found)
    if not picked:
        return
    maps = [
        (found[key].policy, each)
        for key in picked
        if (each := data.tier_map(source.key, source.engine, key, found[key].problem_id, found[key].repeat))
    ]
    show(tier_bytes.over_time(maps), alt=tier_bytes.time_in_words(maps), name="bytes by tier over time")
    st.caption(
        "One sample: bytes in each tier after a decode step and its event, as the ledger counted them, stacked; "
        "between two looks the last one stands. Dashed: what the full cache would hold of the same tokens."
    )


def _policies(found: Mapping[str, TierMapInfo]) -> list[str]:
    """Ask whose maps to show; at first the first few that are not the full cache."""
    asked = [key for key in (remembered("mapped by") or "").split(",") if key in found]
    usual = [key for key, info in found.items() if info.policy_name != FULL] or list(found)
    picked: list[str] = st.multiselect(
        "Policies",
        list(found),
        default=(asked or usual[:4])[:MOST_PANELS],
        key=choice_key("mapped by", list(found)),
        format_func=lambda key: f"{found[key].policy} [{key[:6]}]",
        max_selections=MOST_PANELS,
    )
    remember("mapped by", ",".join(picked))
    return picked


def moves(cells: list[CellSummary], devices: list[DeviceSpeed]) -> None:
    cells, too_many = limited(cells, LISTED, "The chart shows")
    kept = {cell.fingerprint for cell in cells}
    traffic = transfers.moved([each for each in devices if each.fingerprint in kept])
    show(transfers.transfer_bars(cells, traffic), alt=transfers.transfers_in_words(cells, traffic), name="transfers")
    own = [traffic[cell.fingerprint] for cell in cells if cell.fingerprint in traffic]
    notes = [
        *too_many,
        "Keys and values that events moved between device and host memory, over all shards of a cell and all of its "
        "generated tokens. Reading the host's tier for attention isn't a move and isn't counted.",
    ]
    if any(each.share is None for each in own):
        notes.append(
            "A dash: no share of decode time. On a CPU both tiers lie in one memory: there is no bus whose time could "
            "be measured; the same moves are counted."
        )
    if still := sum(not each.to_host and not each.to_device for each in own):
        notes.append(f"Policies that moved nothing, not in the chart: {still}.")
    st.caption(" ".join([*notes, *_left_out(len(cells) - len(own), "an ended shard")]))


def latency(cells: list[CellSummary], speeds: Mapping[str, CellSpeed], look: Mapping[str, Look]) -> None:
    with st.columns(3)[0]:
        first = choose("Time", list(MEASURES), "time", MEASURES.__getitem__) == "ttft"
    measure: speed_figures.Measure = "ttft" if first else "tpot"
    cells, too_many = limited(cells, LISTED, "The chart shows")
    alt = speed_figures.latency_in_words(cells, speeds, measure)
    show(speed_figures.latency_spread(cells, speeds, look, measure), alt=alt, name=f"latency {measure}")
    notes = [
        *too_many,
        "Thick: half of the samples, thin: 90% of them; the mark is the median, the tick leaves 1% to its right.",
    ]
    if first:
        notes.append(
            "From the start of a sample's prefill to its first token: prompts that are prefilled together end "
            "together, and waiting for room in a batch isn't in it."
        )
    else:
        notes.append(
            "(last token − first token) / (tokens − 1), of each sample with two tokens or more: what else the engine "
            "did meanwhile is in it. Thin crosses: decode steps alone, 50% and 99% of each shard, mean over shards."
        )
    if any(cell.exclusive is False for cell in cells):
        notes.append("Hollow: another engine ran on the node, so times may be long.")
    spreads = {key: found for key, each in speeds.items() if (found := speed_figures.spread(each, measure))}
    missing = sum(cell.fingerprint not in spreads for cell in cells)
    own = [speeds[cell.fingerprint] for cell in cells if cell.fingerprint in speeds]
    unmeasured = sum(each.n - (spreads[each.fingerprint].n if each.fingerprint in spreads else 0) for each in own)
    if unmeasured:
        notes.append(f"Samples without this time, left out: {unmeasured:,}.")
    st.caption(" ".join([*notes, *_left_out(missing, "this time")]))


def roof(cells: list[CellSummary], devices: list[DeviceSpeed], look: Mapping[str, Look]) -> None:
    show(roofline.roofline(cells, devices, look), alt=roofline.in_words(cells, devices), name="roofline")
    notes = [
        "The roof is the bandwidth at which the device's memory was measured to copy, over the bytes that a decode "
        "step reads for each of its tokens: weights once a step, keys and values of each row. More rows in a batch "
        "move a point to the left. What lies between it and the roof is time that goes elsewhere."
    ]
    if any(each.shared for each in devices):
        notes.append("Hollow: another engine ran on the node and used the same memory.")
    there = {each.fingerprint for each in roofline.measured(devices)}
    reasons = Counter(why for each in devices if (why := roofline.why_not(each)))
    if unended := sum(cell.fingerprint not in {each.fingerprint for each in devices} for cell in cells):
        reasons["no shard has ended"] += unended
    if missing := sum(cell.fingerprint not in there for cell in cells):
        notes.append(
            f"Policies not in the chart: {missing} ({'; '.join(f'{why}: {n}' for why, n in reasons.items())})."
        )
    st.caption(" ".join(notes))
