"""The read side: everything the dashboard, the exports and the resuming coordinator ask. Nothing here writes.

Aggregation happens in SQL, and long texts are only read one sample at a time.
"""

from db.diagnosed import DiagnosticSummary, diagnosed_keys, diagnostic_summaries
from db.failures import FailedSample, failed_samples
from db.progress import (
    CellProgress,
    EventInfo,
    SweepInfo,
    change_token,
    finished_keys,
    list_events,
    list_sweeps,
    sweep_progress,
)
from db.samples import SampleDetail, SampleInfo, count_samples, get_sample, list_samples, same_problem
from db.summaries import CellSummary, PairedDelta, cell_summaries, list_policies, paired_deltas

__all__ = [
    "CellProgress",
    "CellSummary",
    "DiagnosticSummary",
    "EventInfo",
    "FailedSample",
    "PairedDelta",
    "SampleDetail",
    "SampleInfo",
    "SweepInfo",
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
    "sweep_progress",
]
