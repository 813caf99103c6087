"""From what an engine sends to the rows that are kept: this is where an answer is graded."""

import platform
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from cluster.work import Diagnosed, Done, Mapped, Shard, ShardStats
from db.rows import CellRow, DiagnosticRow, SampleRow, ShardRow, TierMapRow
from jobs.grading import thinking_opened
from jobs.grid import Cell
from jobs.work_queue import Sample, split_key
from tiercache.shapes import shape_of

RECORDED = ("tiercache-eval", "torch", "transformers", "ray", "datasets", "sqlalchemy")


def sample_row(sample: Sample, done: Done, shard_id: str, attempt: int) -> SampleRow:
    """A finished sample, graded."""
    completion = done.completion
    thinking = thinking_opened(done.prompt)
    benchmark, reference = sample.cell.benchmark, sample.problem.reference
    grade = benchmark.grade(reference, done.text, completion.finish, thinking_open=thinking)
    return SampleRow(
        fingerprint=sample.cell.fingerprint,
        problem_id=sample.problem.id,
        repeat=sample.repeat,
        attempt=attempt,
        seed=sample.seed,
        outcome=grade.outcome,
        score=None if grade.outcome == "failed" else grade.score,
        grader=benchmark.grader,
        finish_reason=completion.finish,
        prompt=done.prompt,
        output=done.text,
        extracted=grade.extracted,
        reference=reference,
        prompt_tokens=completion.prompt_tokens,
        output_tokens=len(completion.tokens),
        ttft_s=completion.ttft_s,
        wall_s=completion.wall_s,
        **asdict(completion.ledger),  # the ledger's fields are the row's
        shard_id=shard_id,
    )


def failed_row(sample: Sample, reason: str, attempt: int) -> SampleRow:
    """A sample for which there is no generation, with the reason."""
    return SampleRow(
        fingerprint=sample.cell.fingerprint,
        problem_id=sample.problem.id,
        repeat=sample.repeat,
        attempt=attempt,
        seed=sample.seed,
        outcome="failed",
        finish_reason="error",
        prompt=sample.problem.prompt,
        output="",
        reference=sample.problem.reference,
        error=reason,
    )


def diagnostic_row(fingerprint: str, item: Diagnosed) -> DiagnosticRow:
    """What was measured of a finished sample, beside it."""
    problem_id, repeat = split_key(item.key)
    values = asdict(item.diagnostics)  # its fields are the row's
    if item.diagnostics.kl is not None:
        values["kl"] = max(0.0, item.diagnostics.kl)  # rounding can take a divergence of nothing below nothing
    return DiagnosticRow(fingerprint=fingerprint, problem_id=problem_id, repeat=repeat, **values)


def tier_map_row(fingerprint: str, item: Mapped) -> TierMapRow:
    """Where a finished sample's tokens lay, packed."""
    import numpy as np  # only where there are maps: the command line starts without it

    from db.tier_codec import Looks, pack

    problem_id, repeat = split_key(item.key)
    record = item.record
    looks = Looks(
        steps=record.steps,
        seen=record.seen,
        tiers=record.tiers,
        overall=record.overall,
        held=record.held,
        importance=record.importance,
    )
    blob, kept = pack(looks, record.series, item.texts, np.array(item.tokens, dtype=np.int64))
    return TierMapRow(
        fingerprint=fingerprint,
        problem_id=problem_id,
        repeat=repeat,
        steps=len(record.series["full"]) - 1,
        prompt_tokens=record.prompt,
        tokens=len(item.tokens),
        looks=kept,
        layers=record.layers,
        kv_heads=record.kv_heads,
        no_importance=record.no_importance,
        blob=blob,
    )


def shard_row(shard: Shard, fingerprint: str, sweep_id: str, measured: ShardStats, exclusive: bool) -> ShardRow:
    """What one engine call measured. Where there is no device peak (CPU) the ledger stands in, and the row says so."""
    stats = measured.stats
    return ShardRow(
        id=shard.id,
        fingerprint=fingerprint,
        sweep_id=sweep_id,
        actor=measured.worker,
        host=measured.host,
        device=measured.device,
        started_at=datetime.fromtimestamp(measured.started, UTC),
        finished_at=datetime.fromtimestamp(measured.ended, UTC),
        samples=stats.sequences,
        prefill_tokens=stats.prefill_tokens,
        prefill_s=stats.prefill_s,
        decode_tokens=stats.decode_tokens,
        decode_s=stats.decode_s,
        decode_steps=stats.decode_steps,
        tpot_p50_s=stats.step_p50_s if stats.decode_steps else None,
        tpot_p99_s=stats.step_p99_s if stats.decode_steps else None,
        ttft_p50_s=stats.ttft_p50_s,
        max_rows=stats.max_rows,
        allocated_bytes_peak=stats.allocated_bytes_peak,
        device_peak_bytes=stats.device_peak_bytes,
        device_peak_source="ledger" if stats.device_peak_bytes is None else "device",
        bytes_to_host=stats.bytes_to_host,
        bytes_to_device=stats.bytes_to_device,
        decode_read_bytes=stats.decode_read_bytes,
        copy_bytes_per_s=measured.copy_bytes_per_s,
        transfer_s=stats.transfer_s,
        exclusive=exclusive,
    )


def cell_row(cell: Cell) -> CellRow:
    """A cell as the database keeps it."""
    shape = shape_of(cell.model)
    return CellRow(
        fingerprint=cell.fingerprint,
        model=cell.model.name,
        benchmark=cell.benchmark.label,
        policy=cell.policy.label,
        policy_name=cell.policy.name,
        config=dict(cell.config),
        protocol=cell.protocol,
        kv_bytes_per_token=shape.kv_bytes_per_token(cell.model.dtype) if shape else 0,
        expected_samples=cell.samples,
    )


def environment() -> dict[str, Any]:
    """Versions and machine, stored with each sweep."""
    versions = {}
    for name in RECORDED:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "not installed"
    return {
        "versions": versions,
        "python": platform.python_version(),
        "host": platform.node(),
        "platform": platform.platform(),
    }
