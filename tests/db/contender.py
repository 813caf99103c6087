"""Eight processes that open a database at once, each inserting COUNT rows; exits with the number that failed.

Run as: contender.py URL COUNT. Not a test itself; see test_contention.py. It forks, which is only safe in a process
that has done nothing else yet.
"""

import os
import sys
import time
import traceback

from db.rows import SampleRow
from db.writer import Writer

PROCESSES = 8


def contend(url: str, count: int, number: int) -> None:
    with Writer.open(url) as writer:
        for problem in range(count):
            new = writer.record(
                [
                    SampleRow(
                        fingerprint="a",
                        problem_id=f"{number}-{problem}",
                        repeat=0,
                        seed=problem,
                        outcome="correct",
                        finish_reason="eos",
                        prompt="p",
                        output="o" * 1000,
                        reference="r",
                    )
                ]
            )
            assert new == 1, "spooled, so the database was locked"


def main(url: str, count: int) -> int:
    start = time.monotonic() + 0.3  # all are forked by then, and wait in the same instant
    children = []
    for number in range(PROCESSES):
        child = os.fork()
        if child == 0:
            time.sleep(max(0.0, start - time.monotonic()))
            try:
                contend(url, count, number)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        children.append(child)
    return sum(os.waitpid(child, 0)[1] != 0 for child in children)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
