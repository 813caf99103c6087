"""Child processes that compare answers, from any thread, event loop or actor.

math-verify's own time limits are signals, which only work in a main thread, and can't stop a computation inside C code.
A child that is late is killed; the next question gets a new one.
"""

import functools
import json
import os
import queue
import subprocess
import sys
import threading
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any

from jobs.grading import equivalence
from tiercache.errors import GradingError

LIMIT_S = 5.0
START_S = 120.0  # the algebra system takes a second to import, and many on a busy machine with a cold disk
RETIRED_AFTER = 2000  # questions: caches grow
REMEDY = "Install it where the workers run: pip install 'math-verify==0.9.0'"


class _Child:
    """One process, asked one question at a time."""

    def __init__(self) -> None:
        self.questions = 0
        self._lost = False
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(Path(equivalence.__file__))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONHASHSEED": "0"},  # the same path through the algebra each time
            start_new_session=True,  # a Ctrl-C is the parent's to handle
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout

    def begin(self) -> None:
        """Waits until it is ready; raises GradingError if math-verify can't be imported."""
        first = self._exchange(b"", START_S)
        if first is None or "error" in first:
            self.stop()
            reason = first["error"] if first else f"no reply in {START_S:g} s, exit code {self._process.returncode}"
            raise GradingError(f"Mathematical answers can't be graded without math-verify ({reason}). {REMEDY}")

    @property
    def usable(self) -> bool:
        return not self._lost and self.questions < RETIRED_AFTER and self._process.poll() is None

    def ask(self, a: str, b: str, limit_s: float) -> bool | None:
        self.questions += 1
        verdict = self._exchange(json.dumps([a, b, limit_s]).encode("ascii") + b"\n", limit_s)
        return verdict if isinstance(verdict, bool) else None

    def _exchange(self, question: bytes, limit_s: float) -> Any:
        """The reply to a line, or None if the process is late or dead: a timer kills it, so reading ends."""
        timer = threading.Timer(limit_s, self._late)
        timer.start()
        try:
            self._input.write(question)
            self._input.flush()
            return json.loads(self._output.readline())
        except (OSError, ValueError):  # ValueError: an empty or half a line, or pipes that stop() closed
            self._lost = True
            return None
        finally:
            timer.cancel()
            timer.join()

    def _late(self) -> None:
        self._lost = True
        self._process.kill()

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._input, self._output):
            with suppress(OSError):  # what was not written yet has nowhere to go
                pipe.close()


class Judges:
    """A small pool of comparing processes, started when first needed; safe to share between threads.

    Its processes end with it and with this process, killed or not: they end when their input does.
    """

    def __init__(self, size: int = 2) -> None:
        self._idle: queue.LifoQueue[_Child | None] = queue.LifoQueue()
        self._running: set[_Child] = set()
        for _ in range(size):
            self._idle.put(None)
        self._owner = os.getpid()
        weakref.finalize(self, _stop, self._running, self._owner)

    def ask(self, a: str, b: str, limit_s: float = LIMIT_S) -> bool | None:
        """Whether answer `b` is the same mathematics as reference `a`; None: undecided after `limit_s` seconds.

        LaTeX without delimiters. The time runs from when a process is free and ready. Raises GradingError if
        math-verify can't be imported.
        """
        child = self._idle.get()
        try:
            if child is None or not child.usable:
                self._drop(child)
                child = _Child()
                self._running.add(child)
                child.begin()
            return child.ask(a, b, limit_s)
        except BaseException:  # interrupted between question and reply, it would answer the wrong question next
            self._drop(child)
            child = None
            raise
        finally:
            self._idle.put(child)

    def close(self) -> None:
        """Ends the processes; a question that one of them is at stays undecided, a later one starts a new one."""
        _stop(self._running, self._owner)

    def _drop(self, child: _Child | None) -> None:
        if child is not None:
            child.stop()
            self._running.discard(child)


def _stop(children: set[_Child], owner: int) -> None:
    if os.getpid() == owner:  # a fork has the objects, but not the processes
        for child in list(children):
            children.discard(child)
            child.stop()


@functools.cache
def shared() -> Judges:
    """The pool of this process."""
    return Judges()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=shared.cache_clear)
