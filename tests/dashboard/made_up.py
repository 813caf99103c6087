"""A small sweep with made-up numbers, written through the real writer. Test data: it says nothing about any policy."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

from db.rows import CellRow, SampleRow, ShardRow
from db.writer import Writer

BEGIN = datetime(2030, 1, 1, 12, tzinfo=UTC)
KV_BYTES_PER_TOKEN = 1024
PROMPT_TOKENS = 60
ONE, TWO = "1a2b3c4d5e6f", "f00dfeedbeef"  # protocols
HOSTILE = '<script>document.title="owned"</script> **bold** $x^2$ ![x](http://example.invalid/x.png) \x1b[31m'

# label, preset, accuracy, share of tokens in (hbm, ddr, packed), decode tokens/s, rate of truncation
POLICIES = [
    ("full", "full", 0.80, (1.00, 0.00, 0.0), 300.0, 0.02),
    ("hierarchy hbm=0.5 evict=0.03", "hierarchy", 0.79, (0.50, 0.47, 0.0), 340.0, 0.02),
    ("hierarchy hbm=0.25 evict=0.03", "hierarchy", 0.77, (0.25, 0.72, 0.0), 390.0, 0.03),
    ("hierarchy hbm=0.25 evict=0.03 packed=0.3", "hierarchy", 0.75, (0.25, 0.42, 0.3), 420.0, 0.03),
    ("h2o budget=0.5", "h2o", 0.52, (0.50, 0.00, 0.0), 460.0, 0.14),
    ("h2o budget=0.5 pin_prompt", "h2o", 0.60, (0.52, 0.00, 0.0), 450.0, 0.10),
    ("h2o budget=0.25", "h2o", 0.21, (0.25, 0.00, 0.0), 620.0, 0.30),
    ("streaming budget=0.5", "streaming", 0.35, (0.50, 0.00, 0.0), 470.0, 0.20),
    ("streaming budget=0.25", "streaming", 0.10, (0.25, 0.00, 0.0), 640.0, 0.42),
    ("random budget=0.5", "random", 0.18, (0.50, 0.00, 0.0), 440.0, 0.35),
]


def cell(place: int, expected: int, *, protocol: str = ONE, model: str = "test-model") -> CellRow:
    """Return the cell of POLICIES[place]."""
    label, preset, *_ = POLICIES[place]
    return CellRow(
        fingerprint=f"{place:02d}{protocol}",
        model=model,
        benchmark="test-benchmark",
        policy=label,
        policy_name=preset,
        config={"made_up": True},
        protocol=protocol,
        kv_bytes_per_token=KV_BYTES_PER_TOKEN,
        expected_samples=expected,
    )


def samples(row: CellRow, place: int, count: int) -> list[SampleRow]:
    """Return `count` finished samples of a cell; the numbers follow POLICIES with a little noise."""
    noise = random.Random(place)
    _, _, accuracy, (hbm, ddr, packed), _, truncation = POLICIES[place]
    made = []
    for problem in range(count):
        draw = noise.random()
        outcome = "correct" if draw < accuracy else "truncated" if draw < accuracy + truncation else "wrong"
        if outcome == "wrong" and problem % 7 == 3:
            outcome = "no_answer"
        output_tokens = 400 if outcome == "truncated" else noise.randint(120, 300)
        seen = PROMPT_TOKENS + output_tokens
        tiers = [round(seen * share) for share in (hbm, ddr, packed)]
        full_bytes = seen * KV_BYTES_PER_TOKEN
        made.append(
            SampleRow(
                fingerprint=row.fingerprint,
                problem_id=f"problem-{problem:03d}",
                repeat=0,
                seed=problem,
                outcome=outcome,
                finish_reason="length" if outcome == "truncated" else "eos",
                prompt=f"a = {problem}; b = a + 2; what is b?",
                output=f"a is {problem}. "
                + "Then I add two. " * 20
                + f"policy {place}: the answer is {problem + 2}. {HOSTILE}",
                extracted=None
                if outcome in ("no_answer", "truncated")
                else str(problem + (2 if outcome == "correct" else 3)),
                reference=str(problem + 2),
                prompt_tokens=PROMPT_TOKENS,
                output_tokens=output_tokens,
                ttft_s=0.02,
                wall_s=output_tokens / 60,
                hbm_tokens=tiers[0],
                ddr_tokens=tiers[1],
                packed_tokens=tiers[2],
                evicted_tokens=seen - sum(tiers),
                hbm_bytes_mean=0.7 * tiers[0] * KV_BYTES_PER_TOKEN,
                hbm_bytes_peak=tiers[0] * KV_BYTES_PER_TOKEN,
                ddr_bytes_mean=0.7 * tiers[1] * KV_BYTES_PER_TOKEN,
                packed_bytes_mean=0.7 * tiers[2] * KV_BYTES_PER_TOKEN / 4,
                evicted_bytes_end=(seen - sum(tiers)) * KV_BYTES_PER_TOKEN,
                full_bytes_mean=0.7 * full_bytes,
                full_bytes_end=full_bytes,
                metadata_bytes_peak=seen * 8,
                shard_id=f"shard-{row.fingerprint}",
                finished_at=BEGIN + timedelta(seconds=problem),
            )
        )
    return made


def shard(row: CellRow, place: int, sweep_id: str) -> ShardRow:
    """Return the shard that made a cell's samples."""
    rate = POLICIES[place][4]
    return ShardRow(
        id=f"shard-{row.fingerprint}",
        fingerprint=row.fingerprint,
        sweep_id=sweep_id,
        actor="actor-0",
        host="test-host",
        device="made-up device",
        started_at=BEGIN,
        finished_at=BEGIN + timedelta(minutes=1),
        samples=40,
        prefill_tokens=2400,
        prefill_s=0.4,
        decode_tokens=8000,
        decode_s=8000 / rate,
        decode_steps=1000,
        tpot_p50_s=0.011,
        tpot_p99_s=0.019,
        ttft_p50_s=0.02,
        max_rows=8,
        decode_read_bytes=10**9,
        copy_bytes_per_s=1e10,
        exclusive=place != 7,
    )


def failed(row: CellRow, problem: str) -> SampleRow:
    """Return a failed sample, in which everything that may be None is."""
    return SampleRow(
        fingerprint=row.fingerprint,
        problem_id=problem,
        repeat=0,
        seed=0,
        outcome="failed",
        finish_reason="error",
        prompt="",
        output="",
        reference="0",
        error="RuntimeError: made up",
    )


def fill(url: str, count: int = 40) -> None:
    """Write a running sweep of ten policies: most done, one half done, one waiting, one with failures."""
    with Writer.open(url) as writer:
        rows = [cell(place, count) for place in range(len(POLICIES))]
        writer.register_sweep("sweep-1", "made-up sweep", {"name": "made up"}, {"python": "3"}, rows, created_at=BEGIN)
        for place, row in enumerate(rows):
            done = {8: count // 2, 9: 0}.get(place, count)
            made = samples(row, place, done)
            if place == 7:
                made[-1] = failed(row, made[-1].problem_id)
            writer.record(made)
            if done:
                writer.record_shard(shard(row, place, "sweep-1"))
                writer.event("sweep-1", "cell", f"{row.policy}: {done} samples", fingerprint=row.fingerprint)


def only_tables(url: str) -> None:
    Writer.open(url).close()


def sweep_without_samples(url: str) -> None:
    with Writer.open(url) as writer:
        writer.register_sweep("sweep-1", "made-up sweep", {}, {}, [cell(0, 40), cell(4, 40)])


def sweep_without_cells(url: str) -> None:
    with Writer.open(url) as writer:
        writer.register_sweep("sweep-1", "made-up sweep", {}, {}, [])
        writer.set_state("sweep-1", "failed")


def one_policy(url: str) -> None:
    with Writer.open(url) as writer:
        row = cell(4, 1)
        writer.register_sweep("sweep-1", "made-up sweep", {}, {}, [row])
        writer.record(samples(row, 4, 1))
        writer.set_state("sweep-1", "finished")


def in_progress(url: str, count: int = 1) -> None:
    with Writer.open(url) as writer:
        row = cell(0, 40)
        writer.register_sweep("sweep-1", "made-up sweep", {}, {}, [row])
        writer.record(samples(row, 0, count))


def nothing_but_nulls(url: str) -> None:
    """All samples of one cell failed; those of another have no measures, and there is no shard."""
    with Writer.open(url) as writer:
        rows = [cell(0, 2), cell(4, 2)]
        writer.register_sweep("sweep-1", "made-up sweep", {}, {}, rows)
        writer.record([failed(rows[0], "1"), failed(rows[0], "2")])
        bare = SampleRow(
            fingerprint=rows[1].fingerprint, problem_id="1", repeat=0, seed=0, outcome="wrong", finish_reason="eos",
            prompt="", output="", reference="",
        )  # fmt: skip
        writer.record([bare])


def two_protocols(url: str) -> None:
    fill(url, 8)
    with Writer.open(url) as writer:
        rows = [cell(0, 8), *(cell(place, 8, protocol=TWO) for place in (0, 4))]
        writer.register_sweep("sweep-2", "made-up sweep", {}, {}, rows)
        for row, place in zip(rows[1:], (0, 4), strict=True):
            writer.record(samples(row, place, 8))


def grid(url: str, count: int = 8) -> None:
    """Write a hierarchy's HBM ratios by its eviction ratios; one cell was never asked for, one has no sample yet."""
    with Writer.open(url) as writer:
        pairs = [(hbm, evict) for hbm in (0.25, 0.5, 1.0) for evict in (0.0, 0.03, 0.1)][:-1]
        rows = [cell(0, count)]
        for place, (hbm, evict) in enumerate(pairs):
            rows.append(
                CellRow(
                    fingerprint=f"grid{place}{ONE}",
                    model="test-model",
                    benchmark="test-benchmark",
                    policy=f"hierarchy hbm={hbm:g} evict={evict:g} recent=16",
                    policy_name="hierarchy",
                    config={"policy": {"placement": {"hbm": hbm, "evict": evict}}},
                    protocol=ONE,
                    kv_bytes_per_token=KV_BYTES_PER_TOKEN,
                    expected_samples=count,
                )
            )
        writer.register_sweep("sweep-1", "made-up sweep", {}, {}, rows)
        for place, row in enumerate(rows[:-1]):
            writer.record(samples(row, min(place, 7), count))
