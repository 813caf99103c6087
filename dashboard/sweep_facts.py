"""How long a sweep will still take, who works on it, and what it has cost: arithmetic over what is stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from db.actors import ActorInfo, Arrivals, CoordinatorInfo, Loss
from db.queries import SweepInfo

LOSS_WORDS = {
    "actor_died": "actors that died",
    "preempted": "actors whose node was taken away",
    "stalled": "actors that hung",
    "shard_failed": "shards that raised an error",
}


@dataclass(frozen=True, slots=True)
class Fact:
    """A value as people read it, and what it rests on; a dash comes with the reason."""

    value: str
    note: str


def duration(seconds: float) -> str:
    """Return a span of time in its two largest units, e.g. 3 h 20 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min"
    return f"{hours // 24} d {hours % 24} h"


def time_left(sweep: SweepInfo, state: str, came: Arrivals | None) -> Fact:
    """Return how long the sweep will run on if samples go on coming as they have of late."""
    missing = sweep.expected - sweep.done - sweep.failed
    if missing <= 0:
        return Fact("–", "nothing is left to do")
    if state != "running":
        return Fact("–", f"{missing:,} samples are left; nothing runs")
    if came is None or came.per_second is None:
        return Fact("–", "no sample has ended of late")
    span = duration((came.until - came.since).total_seconds())
    return Fact(duration(missing / came.per_second), f"{_rate(came.per_second)} in the last {span}")


def _rate(per_second: float) -> str:
    for unit, seconds in (("s", 1), ("min", 60), ("h", 3600)):
        if per_second * seconds >= 1:
            return f"{per_second * seconds:.3g} samples/{unit}"
    return f"{per_second * 86400:.2g} samples/day"


def costs(actors: Sequence[ActorInfo], spec: Mapping[str, Any]) -> tuple[Fact, Fact]:
    """Return GPU hours and CPU hours: what actors reserved, for as long as they worked on shards that they ended.

    A stored shard says on what it ran, and the sweep's file how many of these an actor reserves; where the file leaves
    that open it is one GPU. Loading, idling and shards that were lost aren't in it.
    """
    cluster = spec.get("cluster")
    cluster = cluster if isinstance(cluster, Mapping) else {}
    on_gpu = sum(actor.busy_s for actor in actors if not actor.on_cpu)
    on_cpu = sum(actor.busy_s for actor in actors if actor.on_cpu)
    if not actors:
        nothing = Fact("–", "no shard of this sweep has ended")
        return nothing, nothing
    gpus, cpus = _positive(cluster.get("gpus_per_actor")), _positive(cluster.get("cpus_per_actor"))
    gpu = Fact("–", "all shards ran on CPUs")
    if on_gpu:
        gpu = Fact(
            _hours(on_gpu * gpus), f"{_hours(on_gpu)} of actors with {gpus:g} GPU{'s' if gpus != 1 else ''} each"
        )
    cpu = Fact("–", "all shards ran on GPUs")
    if on_cpu:
        cpu = Fact(
            _hours(on_cpu * cpus), f"{_hours(on_cpu)} of actors with {cpus:g} CPU{'s' if cpus != 1 else ''} each"
        )
    return gpu, cpu


def _positive(number: object) -> float:
    return float(number) if isinstance(number, int | float) and number > 0 else 1.0


def _hours(seconds: float) -> str:
    hours = seconds / 3600
    return f"{hours:,.2f} h" if hours < 100 else f"{hours:,.0f} h"


def actor_table(actors: Sequence[ActorInfo]) -> pd.DataFrame:
    """One row an actor, the last heard of first."""
    columns = ["actor", "host", "device", "shards", "samples", "at work", "samples/s", "first shard", "last shard"]
    rows = [
        [
            actor.actor,
            actor.host,
            actor.device,
            actor.shards,
            actor.samples,
            duration(actor.busy_s),
            actor.samples / actor.busy_s if actor.busy_s > 0 else None,
            actor.first_at,
            actor.last_at,
        ]
        for actor in actors
    ]
    return pd.DataFrame(rows, columns=columns)


def machine_table(actors: Sequence[ActorInfo]) -> pd.DataFrame:
    """One row a host and device: actors, shards and the last sign of life, the last heard of first."""
    places: dict[tuple[str, str], list[ActorInfo]] = {}
    for actor in actors:
        places.setdefault((actor.host, actor.device), []).append(actor)
    rows = [
        [
            host,
            device,
            len(members),
            sum(each.shards for each in members),
            sum(each.samples for each in members),
            duration(sum(each.busy_s for each in members)),
            max(each.last_at for each in members),
        ]
        for (host, device), members in places.items()
    ]
    columns = ["host", "device", "actors", "shards", "samples", "at work", "last shard"]
    return pd.DataFrame(rows, columns=columns)


def coordinator_table(coordinators: Sequence[CoordinatorInfo]) -> pd.DataFrame:
    """One row a coordinator that holds cells."""
    rows = [[each.holder, each.cells, each.last_at] for each in coordinators]
    return pd.DataFrame(rows, columns=["coordinator", "cells held", "last renewed"])


def losses_in_words(losses: Sequence[Loss]) -> str:
    """Return what was lost on the way; empty where nothing was."""
    return "; ".join(f"{LOSS_WORDS.get(loss.kind, loss.kind)}: {loss.times:,}" for loss in losses)
