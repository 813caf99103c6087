"""Figures and table of the page Memory & speed, without Streamlit."""

import dataclasses
from math import log10

import plotly.graph_objects as go
import pytest

from dashboard import roofline, speed_figures, speed_table, tier_bytes, transfers, wording
from db.connection import open_engine
from db.queries import CellSpeed, DeviceSpeed, Quantiles, cell_speeds, device_speeds


def quantiles(median, n=10):
    at = {1: 0.5, 5: 0.6, 25: 0.8, 50: 1.0, 75: 1.5, 95: 2.0, 99: 3.0}
    return Quantiles(n, median * 1.1, {percent: median * factor for percent, factor in at.items()})


@pytest.fixture(scope="module")
def speeds(database):
    engine = open_engine(database("fill"), read_only=True)
    found = cell_speeds(engine, "sweep-1", "test-model", "test-benchmark")
    engine.dispose()
    return found


@pytest.fixture(scope="module")
def devices(database, cells):
    engine = open_engine(database("fill"), read_only=True)
    found = device_speeds(engine, [cell.fingerprint for cell in cells])
    engine.dispose()
    return found


@pytest.fixture
def timed(cells):
    """Made-up latencies, the later cells faster; the last cell has none."""
    return {
        cell.fingerprint: CellSpeed(
            fingerprint=cell.fingerprint, n=12, peaks=12, hbm_bytes_peak=1.0, hbm_bytes_most=1, full_bytes_end=1.0,
            metadata_bytes_peak=0.0, ttft_s=quantiles(1.0 / (place + 1)), tpot_s=quantiles(0.01 * (place + 1)),
        )
        for place, cell in enumerate(cells[:-1])
    }  # fmt: skip


@pytest.fixture(params=["mean", "peak", "ttft", "tpot", "transfers", "roofline"])
def build(request, look, speeds, devices):
    return {
        "mean": lambda cells: tier_bytes.tier_bars(cells, speeds, "mean"),
        "peak": lambda cells: tier_bytes.tier_bars(cells, speeds, "peak"),
        "ttft": lambda cells: speed_figures.latency_spread(cells, speeds, look, "ttft"),
        "tpot": lambda cells: speed_figures.latency_spread(cells, speeds, look, "tpot"),
        "transfers": lambda cells: transfers.transfer_bars(cells, transfers.moved(devices)),
        "roofline": lambda cells: roofline.roofline(cells, devices, look),
    }[request.param]


def test_every_figure_is_labelled_and_stands_nothing(build, cells):
    figure = build(cells)
    go.Figure(figure.to_dict())
    assert figure.layout.title.text
    assert figure.layout.xaxis.title.text
    assert all(trace.hovertemplate for trace in figure.data)
    names = [field.name for field in dataclasses.fields(cells[0])]
    blank = {name: None for name in names if isinstance(getattr(cells[0], name), float)}
    bare = dataclasses.replace(cells[0], **blank, fingerprint="unknown", exclusive=None, devices=())
    for some in ([], [bare], [bare, cells[1]]):
        build(some).to_json()
    with pytest.raises(ValueError, match="can't share a chart"):
        build([cells[0], dataclasses.replace(cells[1], protocol="other")])


def test_figures_in_words(cells, speeds, devices):
    assert "h2o budget=0.5: " in tier_bytes.bars_in_words(cells, speeds, "mean")
    assert "median" in speed_figures.latency_in_words(cells, speeds, "tpot")
    assert "of the roof" in roofline.in_words(cells, devices)
    assert "0 policies" in transfers.transfers_in_words(cells, transfers.moved(devices))


def test_bars_stand_beside_the_full_cache(cells, speeds):
    figure = tier_bytes.tier_bars(cells, speeds, "mean")
    by_name = {trace.name: trace for trace in figure.data}
    measured = sorted((c for c in cells if c.hbm_bytes is not None), key=lambda c: -(c.resident_bytes or 0))
    divisor = 1024.0
    for place, cell in enumerate(measured):
        assert by_name["HBM"].base[place] == 0
        assert by_name["HBM"].x[place] == pytest.approx(cell.hbm_bytes / divisor)
        top = max(by_name[tier].base[place] + by_name[tier].x[place] for tier in ("HBM", "DDR", "packed"))
        assert top == pytest.approx((cell.hbm_bytes + cell.ddr_bytes + cell.packed_bytes) / divisor)
        assert by_name["full cache"].x[place] == pytest.approx(cell.full_bytes / divisor)
    assert list(figure.layout.yaxis.ticktext)[-1] == measured[-1].policy  # the least in device memory, on top


def test_the_peak_of_quantised_tokens_is_not_made_up(cells, speeds):
    packed = next(cell for cell in cells if cell.packed_bytes)
    assert tier_bytes.parts(packed, speeds[packed.fingerprint], "mean") is not None
    assert tier_bytes.parts(packed, speeds[packed.fingerprint], "peak") is None
    plain = next(cell for cell in cells if cell.n and not cell.packed_bytes)
    assert tier_bytes.parts(plain, speeds[plain.fingerprint], "peak")["HBM"] == speeds[plain.fingerprint].hbm_bytes_peak
    assert tier_bytes.parts(plain, None, "peak") is None


def test_the_fastest_is_on_top_and_the_unmeasured_nowhere(cells, timed, look):
    figure = speed_figures.latency_spread(cells, timed, look, "ttft")
    rows = list(figure.layout.yaxis.ticktext)
    assert len(rows) == len(cells) - 1
    assert cells[-1].policy not in rows  # has no time: neither first nor last
    assert rows[-1] == cells[-2].policy
    medians = next(trace for trace in figure.data if trace.name == "median")
    assert list(medians.x) == sorted(medians.x, reverse=True)
    assert medians.x[-1] == pytest.approx(1000 / (len(cells) - 1))
    middle = next(trace for trace in figure.data if trace.name == "25% to 75%")
    assert middle.base[0] == pytest.approx(800)
    assert middle.base[0] + middle.x[0] == pytest.approx(1500)


def test_latencies_of_a_shared_node_are_hollow(cells, timed, look):
    figure = speed_figures.latency_spread(cells, timed, look, "tpot")
    medians = next(trace for trace in figure.data if trace.name == "median")
    shared = [c.policy for c in cells if c.exclusive is False]
    hollow = [
        label
        for label, symbol in zip(figure.layout.yaxis.ticktext, medians.marker.symbol, strict=True)
        if symbol.endswith("-open")
    ]
    assert hollow == shared == ["streaming budget=0.5"]
    assert {trace.name for trace in figure.data} >= {"decode step, 50%", "decode step, 99%"}


def test_wide_spreads_get_a_logarithmic_axis(cells, timed, look):
    for ratio, axis in ((1.0, "linear"), (100.0, "log")):
        some = {
            key: dataclasses.replace(each, tpot_s=quantiles(ratio if place % 2 else 1.0))
            for place, (key, each) in enumerate(timed.items())
        }
        assert speed_figures.latency_spread(cells, some, look, "tpot").layout.xaxis.type == axis


def device(fingerprint, name="G", **changes):
    values = {
        "shards": 2, "shared": 0, "decode_tokens": 1000, "decode_s": 10.0, "measured": 2, "tokens_per_s": 100.0,
        "bytes_per_token": 1e6, "copy_bytes_per_s": 1e9, "bytes_to_host": 0, "bytes_to_device": 0, "transfer_s": None,
        "transfer_decode_s": None, "allocated_bytes_peak": None, "device_peak_bytes": None,
    }  # fmt: skip
    return DeviceSpeed(fingerprint=fingerprint, device=name, **{**values, **changes})


def test_traffic_of_all_devices_and_the_share_of_those_that_measured(cells):
    some = [
        device("a", bytes_to_host=3000, bytes_to_device=1000, transfer_s=2.0, transfer_decode_s=10.0),
        device("a", "cpu", bytes_to_host=1000),
        device("b", decode_tokens=0),
    ]
    found = transfers.moved(some)
    assert found["a"].per_token == (2.0, 0.5)
    assert found["a"].share == pytest.approx(0.2)
    assert (found["b"].per_token, found["b"].share) == (None, None)
    traffic = {cells[0].fingerprint: found["a"], cells[1].fingerprint: dataclasses.replace(found["a"], share=None)}
    figure = transfers.transfer_bars(cells[:3], traffic)
    assert [trace.name for trace in figure.data] == ["to the host", "to the device"]
    assert {note.text for note in figure.layout.annotations} == {"20.0%", "–", "of decode<br>time"}
    assert "there is no bus" in figure.data[0].hovertemplate[0] + figure.data[0].hovertemplate[1]
    assert "Nothing was moved" in transfers.transfer_bars(cells[2:], traffic).to_json()


def test_roof_is_bandwidth_over_bytes(cells, look):
    one, two, three = (cell.fingerprint for cell in cells[:3])
    some = [device(one), device(two, bytes_per_token=2e6, shared=1), device(three, copy_bytes_per_s=None)]
    figure = roofline.roofline(cells, some, look)
    low, roof, *marks = figure.data
    assert len(marks) == 2  # the third has no bandwidth, and no place
    assert [low.mode, roof.mode] == ["lines", "lines"]
    unit = 2**20
    for x, y in zip(roof.x, roof.y, strict=True):
        assert y == pytest.approx(1e9 / (x * unit))
        assert log10(y) < log10(1e9)
    assert [mark.marker.symbol.endswith("-open") for mark in marks] == [False, True]
    assert "10.0% of the roof" in marks[0].hovertemplate
    assert [roofline.why_not(each) != "" for each in some] == [False, False, True]
    assert roofline.why_not(device("x", decode_tokens=0, bytes_per_token=None)) == "no token was decoded"


def test_table_ranks_the_unmeasured_last_and_says_why(cells, speeds, devices):
    table = speed_table.speed_table(cells, speeds, devices).set_index("policy")
    rates = list(table["decode tokens/s"].dropna())
    assert rates == sorted(rates, reverse=True)
    assert table["decode tokens/s"].isna().iloc[-1]
    assert table.loc["random budget=0.5", "missing"] == "no sample finished yet"
    assert "no bus" in table.loc["full", "missing"]
    assert table.loc["full", "TPOT samples"] == 40
    assert table.loc["full", "to host a token"] == 0
    assert table.loc["full", "peak full bytes"] > table.loc["full", "mean full bytes"]
    assert set(speed_table.columns(table.reset_index())) >= {"policy", "decode tokens/s", "of the roof"}


def test_table_gives_no_single_roof_over_two_devices(cells, speeds):
    cell = cells[0]
    two = [device(cell.fingerprint), device(cell.fingerprint, "cpu")]
    table = speed_table.speed_table([cell], speeds, two)
    assert table["of the roof"].isna().all()
    assert "several kinds of device" in table["missing"][0]
    (why,) = speed_table.speed_table([cell], speeds, [])["missing"]
    assert "no shard has ended" in why


def test_dashes_come_with_their_reason():
    assert wording.percent(None) == "– (not measured)"
    assert wording.human_bytes(None, "no bus") == "– (no bus)"
    assert speed_figures.milliseconds(None) == "– (not measured)"
    assert [speed_figures.milliseconds(value) for value in (0.0123456, 2.5)] == ["12.3 ms", "2.5 s"]
