"""The read side: everything the dashboard, the exports and the resuming coordinator ask. Nothing here writes.

Aggregation happens in SQL, and long texts are only read one sample at a time.
"""

from db.diagnosed import DiagnosticSummary, diagnosed_keys, diagnostic_summaries
from db.failures import FailedSample, failed_samples
from db.paired import PairedDelta, paired_deltas
from db.progress import (
    CellProgress,
    EventInfo,
    SweepInfo,
    cell_configs,
    change_token,
    finished_keys,
    list_events,
    list_sweeps,
    sweep_progress,
)
from db.samples import (
    Generation,
    SampleDetail,
    SampleInfo,
    count_samples,
    get_sample,
    list_samples,
    same_problem,
    stored_generations,
)
from db.summaries import CellSummary, cell_summaries, list_policies

__all__ = [
    "CellProgress",
    "CellSummary",
    "DiagnosticSummary",
    "EventInfo",
    "FailedSample",
    "Generation",
    "PairedDelta",
    "SampleDetail",
    "SampleInfo",
    "SweepInfo",
    "cell_configs",
    "cell_summaries",
    "change_token",
    "count_samples",
    "diagnosed_keys",
    "diagnostic_summaries",
    "failed_samples",
    "finished_keys",
    "get_sample",
    "list_events",
    "list_policies",
    "list_samples",
    "list_sweeps",
    "paired_deltas",
    "same_problem",
    "stored_generations",
    "sweep_progress",
]
