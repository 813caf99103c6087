"""Tier maps: what is packed comes back, stays small, is kept once, and waits for an absent database."""

import json
import struct

import numpy as np
import pytest

from db import queries
from db.errors import StorageError
from db.rows import TierMapRow
from db.spool import Spool
from db.store import Entry
from db.tier_codec import LIMIT, Looks, pack, unpack
from db.tier_maps import ABSENT, EVICTED, SERIES, TierMap


def looks_of(looks=9, layers=3, prompt=5, every=4, alike=False, scores=True, seed=0):
    """Made-up looks: tokens come one by one, move about, and go for good."""
    rng = np.random.default_rng(seed)
    steps = np.arange(looks) * every
    tokens = prompt + int(steps[-1]) + 1  # the output's last is never written
    seen = prompt + steps
    tiers = rng.choice(4, (looks, layers, tokens), p=[0.5, 0.2, 0.1, 0.2]).astype(np.uint8)
    tiers[1:][tiers[:-1] == EVICTED] = EVICTED
    if alike:
        tiers[:] = tiers[:, :1]
    tiers[np.broadcast_to(np.arange(tokens) >= seen[:, None, None], tiers.shape)] = 0
    importance = rng.normal(0, 50, (looks, tokens)).astype(np.float32)
    importance[rng.random((looks, tokens)) < 0.3] = np.nan
    held = (tiers != EVICTED).mean(1, dtype=np.float32)
    found = Looks(
        steps=steps, seen=seen, tiers=tiers, overall=tiers[:, 0], held=held, importance=importance if scores else None
    )
    count = int(steps[-1]) + 1
    series = {name: np.cumsum(rng.integers(0, 5000, count)) for name in SERIES}
    return found, series, [f"t{i}\x00\ud800é" for i in range(tokens)], np.arange(tokens) * 1000


def row(problem="1", fingerprint="a", repeat=0, **made):
    found, series, texts, ids = looks_of(**made)
    blob, looks = pack(found, series, texts, ids)
    return TierMapRow(
        fingerprint=fingerprint,
        problem_id=problem,
        repeat=repeat,
        steps=len(series["hbm"]) - 1,
        prompt_tokens=5,
        tokens=len(texts),
        looks=looks,
        layers=found.tiers.shape[1],
        kv_heads=2,
        no_importance=None if found.importance is not None else "because",
        blob=blob,
    )


@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize("scores", [True, False])
def test_what_is_packed_comes_back(alike, scores):
    found, series, texts, ids = looks_of(alike=alike, scores=scores)
    blob, count = pack(found, series, texts, ids)
    back = unpack(blob)
    absent = np.arange(len(texts)) >= found.seen[:, None]
    assert count == len(found.steps) == len(back["steps"])
    assert (back["steps"] == found.steps).all()
    assert back["texts"] == tuple(texts)
    assert (back["ids"] == ids).all()
    for layer in range(3):
        assert (back["tiers"][:, layer] == np.where(absent, ABSENT, found.tiers[:, layer])).all()
    assert (back["overall"] == np.where(absent, ABSENT, found.overall)).all()
    assert np.allclose(back["held"][~absent], found.held[~absent], atol=1 / 255)
    assert np.isnan(back["held"][absent]).all()
    assert {name: values.tolist() for name, values in back["series"].items()} == {
        name: values.tolist() for name, values in series.items()
    }
    assert (back["importance"] is None) == (not scores)
    if scores:
        wanted = np.where(absent, np.nan, found.importance)
        assert (np.isnan(back["importance"]) == np.isnan(wanted)).all()
        assert np.nanmax(np.abs(back["importance"] - wanted)) < 0.2  # sixteen bits of up to 200
        assert back["scored"].all()


def test_a_large_model_stays_below_a_megabyte():
    """28 layers, 4,000 tokens, 256 looks: tokens of each layer leave at moments of their own."""
    rng = np.random.default_rng(1)
    looks, layers, tokens, prompt = 256, 28, 4000, 200
    steps = np.linspace(0, tokens - prompt - 1, looks).astype(int)
    seen = prompt + steps
    came = np.searchsorted(seen, np.arange(tokens), side="right")
    leaves = (came + rng.exponential(60, (layers, tokens))).astype(int)
    present = np.arange(tokens) < seen[:, None]
    tiers = np.where((leaves <= np.arange(looks)[:, None, None]) & present[:, None], EVICTED, 0).astype(np.uint8)
    overall = (tiers.astype(np.float32).mean(1) > 1.5).astype(np.uint8) * EVICTED
    importance = np.where(present, rng.lognormal(size=(looks, tokens)), np.nan).astype(np.float32)
    held = (tiers != EVICTED).mean(1, dtype=np.float32)
    found = Looks(steps=steps, seen=seen, tiers=tiers, overall=overall, held=held, importance=importance)
    series = {name: np.cumsum(rng.integers(0, 57344, tokens - prompt)) for name in SERIES}
    blob, kept = pack(found, series, ["token"] * tokens, np.arange(tokens))
    assert len(blob) < LIMIT
    assert kept == looks
    back = unpack(blob)
    assert (back["tiers"][:, 7][present] == tiers[:, 7][present]).all()
    assert 10 < back["scored"].sum() < looks, "scores don't compress: a few looks have them"
    assert back["scored"][[0, -1]].all()


def test_what_would_be_too_large_loses_every_second_look():
    found, series, texts, ids = looks_of(looks=40)
    whole, _ = pack(found, series, texts, ids)
    small, kept = pack(found, series, texts, ids, limit=len(whole) - 1)
    back = unpack(small)
    assert kept == len(back["steps"]) < 40
    assert back["steps"][-1] == found.steps[-1]
    assert (back["series"]["hbm"] == series["hbm"]).all(), "bytes keep every step"
    least, kept = pack(found, series, texts, ids, limit=1)
    assert kept == 2
    assert unpack(least)["steps"].tolist() == [0, found.steps[-1]]


def test_a_sequence_that_ended_with_its_first_token():
    found, series, texts, ids = looks_of(looks=1)
    back = unpack(pack(found, series, texts, ids)[0])
    assert back["steps"].tolist() == [0]
    assert back["overall"][0, -1] == ABSENT


def test_what_is_no_map_is_said():
    found, series, texts, ids = looks_of()
    blob, _ = pack(found, series, texts, ids)
    for damaged in (b"", b"nothing of ours", blob[:-1], blob[:6], blob[:40] + b"x" + blob[41:]):
        with pytest.raises(StorageError, match="can't be read"):
            unpack(damaged)
    with pytest.raises(StorageError, match="newer version"):
        unpack(b"TCM2" + blob[4:])
    (length,) = struct.unpack_from("<I", blob, 4)
    header = json.loads(blob[8 : 8 + length])
    header["sections"][0][2] = "|O8"  # objects would mean pickle
    head = json.dumps(header).encode()
    with pytest.raises(StorageError, match="unknown type"):
        unpack(blob[:4] + struct.pack("<I", len(head)) + head + blob[8 + length :])


def test_stored_once_and_found(writer, make_sample):
    writer.record([make_sample("b", "2"), make_sample("a", "1")])
    writer.record_tier_maps([row("1", seed=1), row("2", "b", looks=4, scores=False)])
    writer.record_tier_maps([row("1", seed=2, looks=3)])
    assert queries.tier_map_keys(writer.engine, ["a", "b"]) == {("a", "1", 0), ("b", "2", 0)}
    assert queries.tier_map_keys(writer.engine, ["b"]) == {("b", "2", 0)}
    listed = queries.list_tier_maps(writer.engine, "s")
    assert [(each.policy, each.policy_name, each.problem_id, each.looks, each.layers) for each in listed] == [
        ("policy a", "h2o", "1", 9, 3),
        ("policy b", "h2o", "2", 4, 3),
    ]
    assert queries.list_tier_maps(writer.engine, "unknown") == []
    found = queries.get_tier_map(writer.engine, "a", "1", 0)
    assert isinstance(found, TierMap)
    assert (found.looks, found.tokens, found.prompt_tokens, found.kv_heads) == (9, 38, 5, 2)
    assert (found.tiers[:, 1] == unpack(row("1", seed=1).blob)["tiers"][:, 1]).all(), "the first one stays"
    assert queries.get_tier_map(writer.engine, "a", "2", 0) is None
    assert queries.get_tier_map(writer.engine, "b", "2", 0).no_importance == "because"


def test_a_step_is_shown_by_the_last_look_before_it(writer, make_sample):
    writer.record([make_sample("a", "1")])
    writer.record_tier_maps([row("1")])
    found = queries.get_tier_map(writer.engine, "a", "1", 0)
    assert [found.look_at(step) for step in (-1, 0, 3, 4, 7, 8, 32, 99)] == [0, 0, 0, 1, 1, 2, 8, 8]


def test_a_map_waits_for_an_absent_database(writer, outage, make_sample):
    writer.record([make_sample("a", "1")])
    cure = outage(writer.engine)
    writer.record_tier_maps([row("1")])
    cure()
    writer.record([make_sample("a", "2")])
    assert queries.get_tier_map(writer.engine, "a", "1", 0).looks == 9


def test_a_spooled_blob_is_text_and_a_torn_one_is_set_aside(tmp_path):
    spool = Spool([tmp_path], "x")
    spool.append([Entry("tier_map", {"blob": b"\x00\xff"})])
    spool.paths[0].open("a").write('{"kind": "tier_map", "values": {"blob": "not base64!"}}\n')
    found = []
    spool.drain(found.extend)
    assert [entry.values for entry in found] == [{"blob": b"\x00\xff"}]
    assert "not base64" in (tmp_path / "x.spool.rejected").read_text()
