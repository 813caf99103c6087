r"""The child process that decides whether two answers are the same mathematics (`python -m jobs.grading.equivalence`).

A LaTeX parser and a computer algebra system read model output here, and some of it makes them compute for ever, recurse
to the end of the stack or fill the memory. So they run in a process that can be killed, with a memory limit of its own
and, in case its parent dies first, a limit on processor time.

Protocol: a first line, `{"ready": true}` or `{"error": "…"}`; then, for each line `["reference", "answer", seconds]` on
the standard input, `true`, `false` or `null` (undecided). JSON in ASCII, so that any text passes. Ends with its input.

Runs as a plain file too, so it imports nothing from this project.
"""

import json
import math
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

MEMORY_BYTES = 2 * 2**30
RECURSION = 3000  # a LaTeX group takes about a dozen frames of the parser


def loaded() -> Callable[[str, str], bool]:
    """The comparison by math-verify, whose own time limits are signals and therefore off."""
    from latex2sympy2_extended import NormalizationConfig
    from math_verify import LatexExtractionConfig, parse, verify
    from sympy import Expr, Float, I, Rational, Symbol, simplify
    from sympy.core.random import seed

    # Its list of units has `m`, `h`, `t` and `c`, which would make 2m the same as 2.
    normal = NormalizationConfig(
        basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none", equations=False
    )
    config = [LatexExtractionConfig(boxed_match_priority=-1, normalization_config=normal)]

    def parsed(text: str) -> list[Any]:
        return [exact(each) for each in parse(f"${text}$", config, fallback_mode="no_fallback", parsing_timeout=None)]

    def exact(value: Any) -> Any:
        """Decimals and small powers as fractions, which verify() would round; i as a number, not a name."""
        if written := getattr(value, "_unsorted_args", None):  # a list of answers keeps the order it was written in
            return value.func(*map(exact, written))
        names: dict[Any, Any] = {name: I for name in value.free_symbols if str(name) == "i"}
        value = value.xreplace(names | {each: Rational(str(each)) for each in value.atoms(Float)})
        arithmetic = isinstance(value, Expr) and all(each.is_Rational for each in value.atoms())
        return value.doit() if arithmetic else value

    def same(reference: str, answer: str) -> bool:
        seed(0)  # zero tests evaluate at random points
        gold, given = parsed(reference), parsed(answer)
        if verify(gold, given, allow_set_relation_comp=True, timeout_seconds=None):
            return True
        return any(  # it compares a lone name by its spelling only, so that x isn't 2x/2
            isinstance(a, Expr) and isinstance(b, Expr) and Symbol in (type(a), type(b)) and simplify(a - b) == 0
            for a, b in zip(gold, given, strict=False)
        )

    return same


def _limit_memory() -> None:
    with suppress(ImportError, OSError, ValueError):  # not every platform has it
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))


def _limit_time(seconds: float) -> None:
    """Ends this process after `seconds` more of processor time: its parent may not be there to do it."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        used = resource.getrusage(resource.RUSAGE_SELF)
        limit = math.ceil(used.ru_utime + used.ru_stime + seconds) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.getrlimit(resource.RLIMIT_CPU)[1]))


def main() -> None:
    replies, sys.stdout = sys.stdout, sys.stderr  # nothing that a library prints gets between the replies

    def reply(value: object) -> None:
        print(json.dumps(value), file=replies, flush=True)

    _limit_memory()
    sys.setrecursionlimit(RECURSION)
    try:
        same = loaded()
    except Exception as problem:
        return reply({"error": f"{type(problem).__name__}: {problem}"})
    reply({"ready": True})
    for line in sys.stdin:
        reference, answer, seconds = json.loads(line)
        _limit_time(seconds)
        try:
            verdict = same(reference, answer)
        except Exception:  # whatever hostile text does to a parser
            verdict = None
        reply(verdict)


if __name__ == "__main__":
    main()
