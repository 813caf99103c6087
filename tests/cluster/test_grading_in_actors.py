"""Mathematics is judged alike wherever the grader runs: in this thread, an async actor, and one of several threads."""

import asyncio
from typing import Any

from jobs.grading.mathematics import grade_math

CASES = [
    (r"\frac{63}{400}", "0.1575"),
    (r"2\sqrt{3}", r"\sqrt{12}"),
    ("(0,1)", "[0,1]"),
    (r"x^2+1", r"1+x^2"),
    (r"\{1,2,3\}", r"\{3,2,1\}"),
]


def verdicts() -> list[str]:
    return [grade_math(rf"\boxed{{{answer}}}", reference, "eos").outcome for reference, answer in CASES]


class Threads:
    def judge(self) -> list[str]:
        return verdicts()


class Async:
    async def judge(self) -> list[str]:
        await asyncio.sleep(0)
        return verdicts()


def test_the_same_verdicts_in_every_kind_of_actor(ray: Any) -> None:
    expected = verdicts()
    assert set(expected) == {"correct", "wrong"}
    threads = ray.remote(Threads).options(num_cpus=0, max_concurrency=4).remote()
    coroutine = ray.remote(Async).options(num_cpus=0).remote()
    found = ray.get([threads.judge.remote() for _ in range(4)] + [coroutine.judge.remote()], timeout=240)
    assert found == [expected] * 5
