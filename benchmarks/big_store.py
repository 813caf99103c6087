"""A database as large as the dashboard promises to be quick on: 2,000 cells with 200,000 samples, all of them made up.

    python benchmarks/big_store.py OUT [--models 5] [--benchmarks 4] [--policies 100] [--samples 100] [--running]

OUT is a new file or a database's URL. What a real one has is in it: several sweeps that share cells, cells done, half
done and waiting, two protocols, failures, part marks, diagnostics, nodes that were shared, measures that are missing.
The numbers say nothing about any policy. `benchmarks/dashboard_speed.py` measures the dashboard on it.
"""

from __future__ import annotations

import argparse
import time
from datetime import datetime, timedelta
from typing import Any

from big_rows import BEGIN, MODELS, cell_rows, counts, diagnostic_rows, event_rows, sample_rows, shard_rows
from sqlalchemy import Connection, insert

from db.rows import CellRow
from db.schema import Cell, Diagnostic, Event, Sample, Shard, SweepCell
from db.writer import Writer


def fill(
    url: str, *, models: int = 5, benchmarks: int = 4, count: int = 100, samples: int = 100, running: bool = False
) -> None:
    """Write the database. Rows go in by hundreds, past the writer, whose care for each sample would take minutes."""
    cells = cell_rows(models, benchmarks, count, samples)
    numbers = counts(len(cells), samples)
    spec = {"name": "everything", "repeats": 1, "models": list(MODELS[:models]), "policies": [{"name": "full"}]}
    with Writer.open(url) as writer:
        for index, model in enumerate(MODELS[:models]):
            own = [cell for cell in cells if cell.model == model]
            sweep = spec | {"name": f"only {model}", "models": [model]}
            at = BEGIN - timedelta(days=index + 1)
            register(writer, f"sweep-{index + 1}", sweep, own, at)
            writer.set_state(f"sweep-{index + 1}", ("finished", "interrupted", "failed", "cancelled")[index % 4])
        register(writer, "sweep-all", spec, cells, BEGIN)
        if not running:
            writer.set_state("sweep-all", "finished")
        with writer.engine.begin() as connection:
            # In the order of the primary key: then SQLite writes each page of its index once.
            for place in sorted(range(len(cells)), key=lambda each: cells[each].fingerprint):
                cell, number = cells[place], numbers[place]
                add(connection, Sample, list(sample_rows(cell, number, place)))
                add(connection, Shard, list(shard_rows(cell, number, place, "sweep-all")))
                add(connection, Diagnostic, list(diagnostic_rows(cell, number, place)))
            add(connection, Event, event_rows("sweep-all", cells))


def register(writer: Writer, sweep_id: str, spec: dict[str, Any], cells: list[CellRow], at: datetime) -> None:
    """Register a sweep of many cells: the writer's own way takes a statement for each of them."""
    writer.register_sweep(sweep_id, spec["name"], spec, {"host": "made up"}, [], created_at=at)
    with writer.engine.begin() as connection:
        known = {each for (each,) in connection.execute(Cell.__table__.select().with_only_columns(Cell.fingerprint))}
        names = [name for name in CellRow.__dataclass_fields__ if name != "expected_samples"]
        fresh = [cell for cell in cells if cell.fingerprint not in known]
        add(connection, Cell, [{name: getattr(cell, name) for name in names} for cell in fresh])
        listed = [
            {
                "sweep_id": sweep_id,
                "fingerprint": cell.fingerprint,
                "position": place,
                "expected_samples": cell.expected_samples,
            }
            for place, cell in enumerate(cells)
        ]
        add(connection, SweepCell, listed)


def add(connection: Connection, table: type[Any], rows: list[dict[str, Any]]) -> None:
    if rows:
        connection.execute(insert(table.__table__), rows)


def main() -> None:
    words = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(description=words[0], epilog=words[2])
    parser.add_argument("out")
    for name, usual in (("models", 5), ("benchmarks", 4), ("policies", 100), ("samples", 100)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument("--running", action="store_true", help="leave the largest sweep as one that runs")
    asked = parser.parse_args()
    begin = time.perf_counter()
    fill(
        asked.out,
        models=asked.models,
        benchmarks=asked.benchmarks,
        count=asked.policies,
        samples=asked.samples,
        running=asked.running,
    )
    cells = asked.models * asked.benchmarks * asked.policies
    print(f"{cells:,} cells, about {cells * asked.samples:,} samples in {time.perf_counter() - begin:.1f} s")


if __name__ == "__main__":
    main()
