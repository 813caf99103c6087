"""The made-up rows of `big_store.py`: cells with real labels and settings, and samples that follow them with noise."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any

import numpy as np

from db.rows import CellRow, ShardRow
from db.schema import Diagnostic, Sample
from tiercache.policy import Policy, parse_policy

BEGIN = datetime(2030, 1, 1, 12, tzinfo=UTC)
PROMPT_TOKENS, KV_BYTES = 120, 57344
MODELS = ("R1-Distill-Qwen-7B", "R1-Distill-Llama-8B", "R1-Distill-Qwen-14B", "Qwen3-8B", "QwQ-32B", "Phi-4")
BENCHMARKS = ("gsm8k", "math500", "aime2024", "arc_challenge", "chain", "longbench", "ruler")
BUDGETS = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
BY_BUDGET = ("h2o", "streaming", "snapkv_d", "random", "tova", "rkv", "raas", "keydiff")
RATIOS = tuple(product((0.1, 0.25, 0.5, 0.75, 1.0), (0.0, 0.01, 0.03, 0.05, 0.1)))  # of the hierarchy: hbm, evict
STEPS = "First I add the two numbers. Then the third register takes their sum, so the value is carried over. Wait, "
ODD = '<b onclick="x()">bold</b> **not bold** $x^2$ [here](javascript:alert(1)) :material/delete: ‮right to left '


def policies(count: int) -> list[Policy]:
    """The full cache first, then a hierarchy's grid and presets by budget, as labels and settings are really made."""
    entries: list[dict[str, Any]] = [{"name": "full"}]
    for every in (16, 64):
        entries += [{"name": "hierarchy", "hbm": hbm, "evict": evict, "every": every} for hbm, evict in RATIOS]
        entries += [{"name": name, "budget": budget, "every": every} for name in BY_BUDGET for budget in BUDGETS]
    if count > len(entries):
        raise SystemExit(f"--policies={count}: at most {len(entries)}")
    return [parse_policy(entry) for entry in entries[:count]]


def digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:20]


def cell_rows(models: int, benchmarks: int, count: int, expected: int) -> list[CellRow]:
    """All cells. Of the last benchmark the first model was run under two protocols, half of the policies each."""
    rows = []
    made = policies(count)
    for model, benchmark in product(MODELS[:models], BENCHMARKS[:benchmarks]):
        for place, policy in enumerate(made):
            other = (model, benchmark) == (MODELS[0], BENCHMARKS[benchmarks - 1]) and place % 2
            protocol = digest(model, benchmark, bool(other))
            rows.append(
                CellRow(
                    fingerprint=digest(protocol, policy.label),
                    model=model,
                    benchmark=benchmark,
                    policy=policy.label,
                    policy_name=policy.name,
                    config={"benchmark": {"name": benchmark}, "policy": policy.config(), "made_up": True},
                    protocol=protocol,
                    kv_bytes_per_token=KV_BYTES,
                    expected_samples=expected,
                )
            )
    return rows


def counts(cells: int, samples: int) -> list[int]:
    """Samples of each cell: some wait, some are half done, and as many samples more are in those run twice as far."""
    found = [samples] * cells
    for place in range(cells):
        if place % 50 == 48:
            found[place] = 0
        elif place % 50 == 49:
            found[place] = samples // 2
        elif place % 100 in (5, 6, 7):
            found[place] = 2 * samples
    return found


def shares(policy: str) -> tuple[float, float]:
    """Share of the tokens on the device and on the host that a label promises."""
    said = dict(part.split("=") for part in policy.split() if "=" in part)
    if "hbm" in said:
        kept = 1.0 - float(said.get("evict", 0.0))
        return float(said["hbm"]) * kept, (1 - float(said["hbm"])) * kept
    return float(said.get("budget", 1.0)), 0.0


def sample_rows(cell: CellRow, count: int, place: int) -> Iterator[dict[str, Any]]:
    """Finished samples of a cell. Every 40th cell has no bytes recorded; the model decides how hard a problem is."""
    noise = np.random.default_rng(place)
    device, host = shares(cell.policy)
    quality = 0.85 * min(1.0, 0.25 + device + host)
    draws, tokens = noise.random(count), noise.integers(80, 2000, count)
    starts = noise.integers(0, len(STEPS), count)
    for number in range(count):
        draw, output = float(draws[number]), int(tokens[number])
        outcome = "correct" if draw < quality else "truncated" if draw < quality + 0.05 else "wrong"
        outcome = "failed" if draw > 0.997 else "no_answer" if draw > 0.98 and outcome == "wrong" else outcome
        repeat, problem = divmod(number, 200)
        row: dict[str, Any] = dict.fromkeys(Sample.__table__.columns.keys())
        row |= {
            "fingerprint": cell.fingerprint,
            "problem_id": f"{cell.benchmark}-{problem:04d}",
            "repeat": repeat,
            "attempt": 1,
            "seed": number,
            "outcome": outcome,
            "finish_reason": "error" if outcome == "failed" else "length" if outcome == "truncated" else "eos",
            "finished_at": BEGIN + timedelta(seconds=place + number),
            "shard_id": f"{cell.fingerprint}-{number % 2}",
            "prompt": f"Problem {problem}: let a = {problem} and b = a + 2. What is b?",
            "reference": str(problem + 2),
            "output": "",
        }
        if outcome == "failed":
            row["error"] = f"EngineError: row {number} needs {output} MiB more than there are"
            yield row
            continue
        seen = PROMPT_TOKENS + output
        on_device, on_host = round(seen * device), round(seen * host)
        row |= {
            "score": 0.5 if draw > 0.97 and cell.benchmark == "longbench" else float(outcome == "correct"),
            "grader": "numeric/1",
            "extracted": str(problem + 2) if outcome == "correct" else None if outcome == "no_answer" else "7",
            "output": f"{STEPS[starts[number] :]}{STEPS * 4}{ODD if number % 50 == 3 else ''}So it is {problem + 2}.",
            "prompt_tokens": PROMPT_TOKENS,
            "output_tokens": output,
            "ttft_s": 0.05 + draw / 10,
            "wall_s": output * (0.01 + draw / 100),
        }
        if place % 40 != 39:
            row |= {
                "hbm_tokens": on_device,
                "ddr_tokens": on_host,
                "packed_tokens": 0,
                "evicted_tokens": seen - on_device - on_host,
                "hbm_bytes_mean": 0.7 * on_device * KV_BYTES,
                "hbm_bytes_peak": on_device * KV_BYTES,
                "ddr_bytes_mean": 0.7 * on_host * KV_BYTES,
                "packed_bytes_mean": 0.0,
                "evicted_bytes_end": (seen - on_device - on_host) * KV_BYTES,
                "full_bytes_mean": 0.7 * seen * KV_BYTES,
                "full_bytes_end": seen * KV_BYTES,
                "metadata_bytes_peak": seen * 8,
            }
        yield row


def shard_rows(cell: CellRow, count: int, place: int, sweep_id: str) -> Iterator[dict[str, Any]]:
    """Two engine calls a cell, on one of ten machines. Some nodes were shared, some bandwidths were not measured."""
    for half in range(2 if count else 0):
        decoded = count * 500
        seconds = decoded / (400 + 37 * (place % 17))
        row = ShardRow(
            id=f"{cell.fingerprint}-{half}",
            fingerprint=cell.fingerprint,
            sweep_id=sweep_id,
            actor=f"actor-{place % 20}",
            host=f"node-{place % 10}",
            device="NVIDIA H100 80GB HBM3" if place % 5 else "cpu",
            started_at=BEGIN + timedelta(seconds=100 * place + 50 * half),
            finished_at=BEGIN + timedelta(seconds=100 * place + 50 * half + seconds),
            samples=count // 2,
            prefill_tokens=count * 60,
            prefill_s=1.5,
            decode_tokens=decoded,
            decode_s=seconds,
            decode_steps=1000,
            tpot_p50_s=0.02 + place % 7 / 1000,
            tpot_p99_s=0.04 + place % 7 / 500,
            ttft_p50_s=0.09,
            max_rows=64,
            device_peak_bytes=None if place % 5 == 0 else 40 * 2**30,
            device_peak_source="ledger" if place % 5 == 0 else "device",
            bytes_to_host=2**30 if "hbm" in cell.policy else 0,
            bytes_to_device=2**31 if "hbm" in cell.policy else 0,
            decode_read_bytes=None if place % 9 == 0 else 10**12,
            copy_bytes_per_s=None if place % 9 == 0 else 2e12,
            transfer_s=None if place % 5 == 0 else seconds / 20,
            exclusive=place % 30 != 29,
        )
        yield {name: getattr(row, name) for name in ShardRow.__dataclass_fields__}


def diagnostic_rows(cell: CellRow, count: int, place: int) -> Iterator[dict[str, Any]]:
    """What was measured of half of the samples of every tenth cell; the first few were too short for most of it."""
    noise = np.random.default_rng(place)
    lost = 1 - sum(shares(cell.policy))
    for number in range(0, count if place % 10 == 0 else 0, 2):
        row: dict[str, Any] = dict.fromkeys(Diagnostic.__table__.columns.keys())
        row |= {"fingerprint": cell.fingerprint, "problem_id": f"{cell.benchmark}-{number % 200:04d}"}
        row |= {"repeat": number // 200, "steps": 500, "finished_at": BEGIN, "detail": {}}
        row |= {"lir_rescued": 0, "lir_eligible": 0}
        if number > 10:
            masses = ("fmm_acc", "fmm_fp", "fmm_acc_sinks", "fmm_fp_sinks", "churn", "output_error", "kl")
            row |= {name: float(lost * value) for name, value in zip(masses, noise.random(7), strict=True)}
            row |= {"recall": float(1 - lost / 2), "lir_eligible": 20, "lir_rescued": int(lost * 10)}
            row["first_divergent"] = int(noise.integers(5, 500)) if lost > 0 else None
        yield row


def event_rows(sweep_id: str, cells: list[CellRow]) -> list[dict[str, Any]]:
    """Two lines of log a cell."""
    kinds = (("cell", "100 samples"), ("retry", "shard given to another worker: actor died"))
    return [
        {
            "uid": digest(sweep_id, cell.fingerprint, kind),
            "sweep_id": sweep_id,
            "at": BEGIN + timedelta(seconds=place),
            "kind": kind,
            "fingerprint": cell.fingerprint,
            "message": f"{cell.policy}: {words}",
            "data": {},
        }
        for place, cell in enumerate(cells)
        for kind, words in kinds
    ]
