"""Two of the papers' small forms, made so small that the embedded reasoner runs them in a few seconds."""

from collections.abc import Sequence
from pathlib import Path

from cluster.pool import InlinePool, Pool, WorkerOptions
from jobs.grid import Cell
from jobs.papers.minis import Minis, load_minis, run
from jobs.spec import Sweep

FILES = ("hierarchy_grid", "hierarchy_system")
N = 6
HEAD = """
models: [{id: reasoner, dtype: float32}]
benchmarks:
  - {name: chain, n: 6, difficulty: ledger, entries: 10, leaves: 6}
sampling: {max_new_tokens: 110}
"""
POLICIES = {
    "hierarchy_grid": """
  - full
  - {name: hierarchy, hbm: [0.3, 0.5, 0.7], evict: [0, 0.1], every: 4, recent: 8}
""",
    "hierarchy_system": """
  - full
  - {name: hierarchy, hbm: [0.3, 0.5], evict: 0.1, t1_read: stream, every: 4, recent: 8}
  - {name: h2o, scope: token, pin_prompt: true, budget: 0.5}
""",
}


def write_files(folder: Path, head: str = HEAD) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for file, policies in POLICIES.items():
        name = f"name: {file.replace('_', '-')}-mini"
        (folder / f"{file}_mini.yaml").write_text(f"{name}{head}policies:{policies}")
    return folder


def small_minis(folder: Path, n: int | None = None) -> Minis:
    return load_minis(write_files(folder), n, FILES)


class Real(InlinePool):
    """The engine in this process; counts the samples that it is asked for."""

    asked = 0

    def submit(self, shard: object) -> None:
        Real.asked += len(shard.tasks)  # type: ignore[attr-defined]
        super().submit(shard)  # type: ignore[arg-type]


def pools(sweep: Sweep, cells: Sequence[Cell], samples: int) -> Pool:
    return Real(WorkerOptions(model=cells[0].model, device="cpu", max_batch=64, threads=1))


def fill(minis: Minis, url: str) -> int:
    """Computes what is missing; returns how many samples were asked for."""
    Real.asked = 0
    run(minis, url, progress=False, pools=pools)
    return Real.asked
