"""The numbers and what they mean. Plain data: no torch, can cross process boundaries."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Units:
    """What is counted in. The defaults are the same for every policy, so that numbers can be compared.

    cycle     decode steps between two looks at what is held. The policy's own events may be more or less frequent.
    horizon   decode steps over which future attention is summed.
    window    positions that are selected together, for `lir`.
    sinks     first tokens that are left out: they draw most of the mass whatever the policy does.
    patience  cycles without selection after which a window looks dead; `follow`: cycles in which it may come back.
    """

    cycle: int = 8
    horizon: int = 32
    window: int = 8
    sinks: int = 4
    patience: int = 4
    follow: int = 8


@dataclass(frozen=True)
class Diagnostics:
    """One finished sequence; None where it was too short to say. `MEANING` has the definitions.

    steps            decode steps: all generated tokens but the last, whose keys are never written.
    first_divergent  index of the first generated token that the full cache would have chosen otherwise; None: none is.
    detail           by layer, and variants of the same numbers.
    """

    steps: int
    fmm_acc: float | None = None
    fmm_fp: float | None = None
    fmm_acc_sinks: float | None = None
    fmm_fp_sinks: float | None = None
    churn: float | None = None
    lir_rescued: int = 0
    lir_eligible: int = 0
    recall: float | None = None
    output_error: float | None = None
    kl: float | None = None
    first_divergent: int | None = None
    detail: Mapping[str, Any] = field(default_factory=dict)

    @property
    def lir(self) -> float | None:
        """Rescued episodes / eligible ones."""
        return self.lir_rescued / self.lir_eligible if self.lir_eligible else None


MEANING: dict[str, str] = {
    "fmm_acc": "future missed mass: of the full cache's attention over the next 32 steps on tokens that exist now, the "
    "share on tokens that are evicted by now; the first 4 tokens left out",
    "fmm_fp": "the same, quantised tokens counted as missed too",
    "fmm_acc_sinks": "fmm_acc with the first 4 tokens counted",
    "fmm_fp_sinks": "fmm_fp with the first 4 tokens counted",
    "churn": "selection churn: Jaccard distance of the tokens held now and 8 steps ago, without the first 4 and the "
    "policy's recent window",
    "lir": "latent importance reactivation: of windows of 8 that attention under the same budget passed over 4 cycles "
    "of 8 steps running, the share that it wanted again within 8 cycles",
    "recall": "attention recall: share of the full cache's attention on tokens that the policy held at that step",
    "output_error": "relative error of a head's attention output when the full cache's query reads what the policy "
    "held, quantised where it was",
    "kl": "KL divergence in nats of the policy's next-token distribution from the full cache's, on the policy's tokens",
    "first_divergent": "index of the first token that the full cache would have chosen otherwise",
}
