"""Processes that use one database as coordinators and dashboards do. Not a test itself. Run as one of

    contender.py URL COUNT [PROCESSES [reader]]   processes (8) that open it at once and insert COUNT rows each, with
                                                  one that reads at length; exits with the number that failed
    contender.py record URL SPOOL                 records samples for ever, and prints the number of each that is safe

It forks, which is only safe in a process that has done nothing else yet.
"""

import itertools
import os
import sys
import time
import traceback
from collections.abc import Callable

from db import queries
from db.connection import open_engine
from db.rows import SampleRow
from db.writer import Writer

PROCESSES = 8
READER_PATIENCE_S = 240


def row(problem: str, seed: int) -> SampleRow:
    return SampleRow(
        fingerprint="a",
        problem_id=problem,
        repeat=0,
        seed=seed,
        outcome="correct",
        finish_reason="eos",
        prompt="p",
        output="o" * 1000,
        reference="r",
    )


def contend(url: str, count: int, number: int) -> None:
    with Writer.open(url) as writer:
        for problem in range(count):
            new = writer.record([row(f"{number}-{problem}", problem)])
            assert new == 1, "spooled, so the database was locked"


def read_at_length(url: str, total: int) -> None:
    """Keep a transaction open for a second, again and again, until all rows are there."""
    engine = open_engine(url, read_only=True)
    deadline, seen = time.monotonic() + READER_PATIENCE_S, 0
    while seen < total:
        assert time.monotonic() < deadline, f"only {seen} of {total} rows arrived"
        with engine.connect() as connection:
            before = connection.exec_driver_sql("SELECT count(*) FROM samples").scalar_one()
            time.sleep(1)
            after = connection.exec_driver_sql("SELECT count(*) FROM samples").scalar_one()
        assert seen <= before <= after, "rows were lost"
        (sweep,) = queries.list_sweeps(engine)
        (summary,) = queries.cell_summaries(engine, sweep.id)
        assert after <= summary.n <= total
        seen = before


def main(url: str, count: int, processes: int = PROCESSES, reader: str = "") -> int:
    start = time.monotonic() + 0.3  # all are forked by then, and wait in the same instant
    jobs: list[Callable[[], None]] = [lambda number=number: contend(url, count, number) for number in range(processes)]
    if reader:
        jobs.append(lambda: read_at_length(url, count * processes))
    children = []
    for job in jobs:
        child = os.fork()
        if child == 0:
            time.sleep(max(0.0, start - time.monotonic()))
            try:
                job()
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        children.append(child)
    return sum(os.waitpid(child, 0)[1] != 0 for child in children)


def record(url: str, spool: str) -> None:
    with Writer.open(url, spool) as writer:
        for number in itertools.count():
            writer.record([row(str(number), number)])
            writer.event("s", "note", str(number))
            print(number, flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "record":
        record(*sys.argv[2:4])
    sys.exit(main(sys.argv[1], int(sys.argv[2]), *map(int, sys.argv[3:4]), *sys.argv[4:5]))
