"""The diagnostics of a cell's samples: which have them, and their means."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Engine, and_, func, select

from db.counted import samples_of
from db.progress import keys_of
from db.schema import Diagnostic

KEY = ("fingerprint", "problem_id", "repeat")
MEANS = (
    "fmm_acc",
    "fmm_fp",
    "fmm_acc_sinks",
    "fmm_fp_sinks",
    "churn",
    "recall",
    "output_error",
    "kl",
    "first_divergent",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnosticSummary:
    """Means over a cell's diagnosed samples; None where none was long enough. Fields as in `db.rows.DiagnosticRow`."""

    diagnosed: int
    fmm_acc: float | None
    fmm_fp: float | None
    fmm_acc_sinks: float | None
    fmm_fp_sinks: float | None
    recall: float | None
    output_error: float | None
    churn: float | None
    lir: float | None  # rescued / eligible episodes, of all samples together
    kl: float | None
    first_divergent: float | None  # over the samples that diverge
    diverged_share: float  # samples that diverge / diagnosed


def diagnosed_keys(engine: Engine, fingerprints: Iterable[str]) -> set[tuple[str, str, int]]:
    """Return (fingerprint, problem_id, repeat) of the samples that have diagnostics."""
    return keys_of(engine, select(*(getattr(Diagnostic, name) for name in KEY)), Diagnostic.fingerprint, fingerprints)


def diagnostic_summaries(engine: Engine, sweep_id: str | None = None) -> dict[str, DiagnosticSummary]:
    """Return means by cell, over the samples that count for the sweep, or over all; cells without any are left out."""
    source = samples_of(sweep_id, KEY)
    statement = (
        select(
            Diagnostic.fingerprint,
            func.count().label("diagnosed"),
            func.count(Diagnostic.first_divergent).label("diverged"),
            func.sum(Diagnostic.lir_rescued).label("rescued"),
            func.sum(Diagnostic.lir_eligible).label("eligible"),
            *(func.avg(getattr(Diagnostic, name)).label(name) for name in MEANS),
        )
        .join(source, and_(*(source.c[name] == getattr(Diagnostic, name) for name in KEY)))
        .group_by(Diagnostic.fingerprint)
    )
    with engine.connect() as connection:
        return {row.fingerprint: _summary(dict(row._mapping)) for row in connection.execute(statement)}


def _summary(row: dict[str, Any]) -> DiagnosticSummary:
    # Postgres sums and averages integers into Decimals.
    means: dict[str, Any] = {name: None if row[name] is None else float(row[name]) for name in MEANS}
    if means["kl"] is not None:
        means["kl"] = max(0.0, means["kl"])  # rows of earlier versions may lie below 0 by rounding
    return DiagnosticSummary(
        diagnosed=row["diagnosed"],
        diverged_share=row["diverged"] / row["diagnosed"],
        lir=float(row["rescued"]) / float(row["eligible"]) if row["eligible"] else None,
        **means,
    )
