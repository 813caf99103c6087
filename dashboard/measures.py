"""The diagnostics as the page names them: what each means, how it reads, and why it may be missing."""

from __future__ import annotations

from dataclasses import dataclass

from db.queries import DiagnosticSummary
from tiercache.diagnostics.values import MEANING


@dataclass(frozen=True, slots=True)
class Measure:
    """One number.

    field   of `DiagnosticSummary`.
    layers  its name among the values by layer; None where it has none.
    needs   what a sample must have, so that it has the number.
    better  whether `lower` or `higher` is closer to the full cache; None where neither is.
    """

    field: str
    name: str
    unit: str
    needs: str
    layers: str | None = None
    better: str | None = "lower"

    @property
    def meaning(self) -> str:
        return MEANING[self.field]

    def of(self, summary: DiagnosticSummary | None) -> float | None:
        value: float | None = getattr(summary, self.field) if summary is not None else None
        return value

    def shown(self, value: float | None) -> str:
        if value is None:
            return "–"
        return f"{value:.1f}" if self.unit == "token" else f"{value:.4f}"


LOOKS = "needs 33 decode steps: a look with fewer than 32 after it counts nowhere"
MEASURES: dict[str, Measure] = {
    each.field: each
    for each in (
        Measure("fmm_acc", "Future missed mass", "share of attention", LOOKS, "fmm_acc"),
        Measure("fmm_fp", "Future missed mass, full precision", "share of attention", LOOKS, "fmm_fp"),
        Measure(
            "lir",
            "Latent importance reactivation",
            "share of episodes",
            "needs about 100 decode steps, and windows that the same budget would leave out",
            better=None,
        ),
        Measure("churn", "Selection churn", "Jaccard distance", "needs two looks: 9 decode steps", "churn", None),
        Measure("recall", "Attention recall", "share of attention", "needs a decode step", "recall", "higher"),
        Measure("output_error", "Output error", "relative", "needs a decode step", "error"),
        Measure("kl", "KL from the full cache", "nats", "needs a decode step"),
        Measure(
            "first_divergent",
            "First divergent token",
            "token",
            "a mean over the samples that part from the full cache: none did",
            better="higher",
        ),
    )
}
