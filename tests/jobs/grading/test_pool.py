"""The pool of comparing processes: the same verdict from anywhere, and no process that outlives its use."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from jobs.grading.mathematics import equivalent
from jobs.grading.pool import Judges
from tiercache.errors import GradingError

BOMB = "9^{9^{9^{9}}}"
HARD = [
    (r"\frac{63}{400}", "0.1575", True),
    (r"\sqrt{2}+\sqrt{3}", r"\sqrt{5+2\sqrt{6}}", True),
    ("x^2-5x+6", "(x-2)(x-3)", True),
    ("1,2,3", "3,2,1", True),
    ("(1,2)", "(2,1)", False),
    ("(0,1)", "[0,1]", False),
    (r"\pi", "3.141592653589793", False),
]


def _verdicts() -> list[bool | None]:
    return [equivalent(reference, answer) for reference, answer, _ in HARD]


def _from_here() -> list[bool | None]:
    return _verdicts()


def _from_a_pool_of_threads() -> list[bool | None]:
    with ThreadPoolExecutor(4) as threads:
        return list(threads.map(lambda case: equivalent(*case[:2]), HARD))


def _from_a_coroutine() -> list[bool | None]:
    async def main() -> list[bool | None]:
        return list(await asyncio.gather(*(asyncio.to_thread(equivalent, *case[:2]) for case in HARD[1:]), _in_loop()))

    async def _in_loop() -> bool | None:
        return equivalent(*HARD[0][:2])

    *others, first = asyncio.run(main())
    return [first, *others]


def _from_a_loop_off_the_main_thread() -> list[bool | None]:
    async def main() -> list[bool | None]:
        return _verdicts()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(main())).result()


@pytest.mark.parametrize(
    "place", [_from_here, _from_a_pool_of_threads, _from_a_coroutine, _from_a_loop_off_the_main_thread]
)
def test_the_same_verdicts_from_anywhere(place: Callable[[], list[bool | None]]) -> None:
    assert place() == [verdict for _, _, verdict in HARD]


@pytest.fixture(scope="module")
def judges() -> Iterator[Judges]:
    pool = Judges(size=1)
    yield pool
    pool.close()


def _children() -> set[int]:
    return {each.pid for each in psutil.Process().children() if "equivalence.py" in " ".join(each.cmdline())}


def test_a_late_process_is_replaced(judges: Judges) -> None:
    assert judges.ask("x", "x+0") is True
    before = _children()
    start = time.monotonic()
    assert judges.ask("1", BOMB, limit_s=0.5) is None
    assert time.monotonic() - start < 5
    assert judges.ask("x", "x+0") is True
    after = _children()
    assert len(after - before) == 1
    assert len(before - after) == 1


def test_a_dead_process_is_replaced(judges: Judges) -> None:
    judges.ask("x", "x+0")
    processes = [psutil.Process(each) for each in _children()]
    for each in processes:
        each.kill()
    psutil.wait_procs(processes, timeout=10)
    assert judges.ask("x", "x+0") is True
    assert equivalent("x+1", "1+x") is True


def test_one_process_serves_many_threads_each_its_own_answer(judges: Judges) -> None:
    with ThreadPoolExecutor(8) as threads:
        verdicts = threads.map(lambda index: judges.ask("x+1", f"{index % 3}+x"), range(60))
    assert list(verdicts) == [index % 3 == 1 for index in range(60)]


def test_a_bomb_in_one_thread_does_not_hold_another_and_closing_ends_it() -> None:
    pool = Judges(size=2)
    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(pool.ask, ["x", "y"], ["x+0", "y+0"])) == [True, True]  # both processes are up
        bomb = threads.submit(pool.ask, "1", BOMB, 60.0)
        time.sleep(0.3)
        assert pool.ask("x", "x+0") is True
        assert not bomb.done()
        pool.close()
        assert bomb.result(timeout=10) is None


def test_closing_ends_the_processes_and_a_later_question_starts_one() -> None:
    before = _children()
    pool = Judges(size=1)
    pool.ask("x", "x+0")
    (child,) = _children() - before
    pool.close()
    assert not psutil.pid_exists(child)
    assert pool.ask("x", "x+0") is True
    del pool
    assert _children() == before


SCRIPT = """
import sys, threading, time, psutil
from jobs.grading.pool import Judges
judges = Judges(size=1)
judges.ask("x", "x+0")
if sys.argv[1] == "busy":
    threading.Thread(target=judges.ask, args=("1", "9^{9^{9^{9}}}", 1.5)).start()
    time.sleep(0.3)
print(psutil.Process().children()[0].pid, flush=True)
time.sleep(0 if sys.argv[1] == "end" else 60)
"""


@pytest.mark.parametrize("state", ["idle", "busy", "end"])
def test_processes_end_with_their_parent(state: str) -> None:
    """Also when it is killed: an idle process reads the end of its input, a busy one uses up its processor time."""
    with subprocess.Popen([sys.executable, "-c", SCRIPT, state], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        if state != "end":
            os.kill(parent.pid, signal.SIGKILL)
        parent.wait(timeout=30)
    gone, _ = psutil.wait_procs([child], timeout=30)
    assert gone


def test_without_the_library_grading_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "math_verify.py").write_text("raise ImportError('not here')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    pool = Judges(size=1)
    for _ in range(2):  # not only the first time, and the place in the pool isn't lost
        with pytest.raises(GradingError, match=r"not here.*pip install"):
            pool.ask("x", "y")
    monkeypatch.delenv("PYTHONPATH")
    assert pool.ask("x", "x+0") is True
    pool.close()
