"""The read side: everything the dashboard, the exports and the resuming coordinator ask. Nothing here writes.

Aggregation happens in SQL, and long texts are only read one sample at a time.
"""

from db.actors import (
    ActorInfo,
    Arrivals,
    CoordinatorInfo,
    Loss,
    arrivals,
    list_actors,
    list_coordinators,
    list_losses,
)
from db.cells import CellInfo, list_cells
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
from db.speed import CellSpeed, DeviceSpeed, Quantiles, cell_speeds, device_speeds
from db.summaries import CellSummary, cell_summaries, list_policies
from db.tier_maps import TierMap, TierMapInfo, get_tier_map, list_tier_maps, tier_map_keys

__all__ = [
    "ActorInfo",
    "Arrivals",
    "CellInfo",
    "CellProgress",
    "CellSpeed",
    "CellSummary",
    "CoordinatorInfo",
    "DeviceSpeed",
    "DiagnosticSummary",
    "EventInfo",
    "FailedSample",
    "Generation",
    "Loss",
    "PairedDelta",
    "Quantiles",
    "SampleDetail",
    "SampleInfo",
    "SweepInfo",
    "TierMap",
    "TierMapInfo",
    "arrivals",
    "cell_configs",
    "cell_speeds",
    "cell_summaries",
    "change_token",
    "count_samples",
    "device_speeds",
    "diagnosed_keys",
    "diagnostic_summaries",
    "failed_samples",
    "finished_keys",
    "get_sample",
    "get_tier_map",
    "list_actors",
    "list_cells",
    "list_coordinators",
    "list_events",
    "list_losses",
    "list_policies",
    "list_samples",
    "list_sweeps",
    "list_tier_maps",
    "paired_deltas",
    "same_problem",
    "stored_generations",
    "sweep_progress",
    "tier_map_keys",
]
