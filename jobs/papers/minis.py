"""All small forms of the papers' sweeps in one database: computed as one sweep, kept as twelve."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs.coordinator import PoolFactory, SweepResult, run_sweep
from jobs.grid import Cell, expand
from jobs.papers.evidence import FILES
from jobs.spec import Sweep, load_sweep
from tiercache.errors import SpecError

NAME = "papers-mini"


@dataclass(frozen=True)
class Minis:
    """The sweep of each file, and one that has the cells of all."""

    each: tuple[Sweep, ...]
    all: Sweep

    def cells(self) -> list[Cell]:
        """Of all of them, each once."""
        return _distinct(self.each)


def load_minis(folder: Path, n: int | None = None, files: Sequence[str] = FILES) -> Minis:
    """Reads `<file>_mini.yaml` of each.

    Args:
        n: problems of each cell instead of what the files say.

    Raises:
        SpecError: a file is missing or wrong, or the files differ in more than their policies and in `n`.
    """
    sweeps = tuple(_with_n(load_sweep(folder / f"{file}_mini.yaml"), n) for file in files)
    first = sweeps[0]
    for sweep in sweeps[1:]:
        if _shared(sweep) != _shared(first):
            raise SpecError(
                f"{sweep.name}: differs from {first.name} in more than policies and n, so that the two can't be "
                "computed as one sweep. Make models, benchmarks, sampling, seed, engine and cluster equal."
            )
    policies = [entry for sweep in sweeps for entry in sweep.policies]
    return Minis(sweeps, first.model_copy(update={"name": NAME, "policies": policies}))


def run(
    minis: Minis,
    url: str,
    *,
    progress: bool = True,
    address: str | None = None,
    pools: PoolFactory | None = None,
) -> SweepResult:
    """Computes what the database lacks in one Ray session whose workers load the model once, then registers each sweep.

    Raises:
        as `jobs.coordinator.run_sweep`.
    """
    result = run_sweep(minis.all, minis.cells(), url, progress=progress, address=address, pools=pools)
    for sweep in minis.each if result.state == "finished" else ():
        # Nothing is missing now, so this neither starts Ray nor computes anything: it says what the sweep consists of.
        run_sweep(sweep, expand(sweep), url, progress=False, address=address, pools=pools)
    return result


def _distinct(sweeps: Sequence[Sweep]) -> list[Cell]:
    """Cells that sweeps share once, with the most problems that one of them asks for."""
    cells: dict[str, Cell] = {}
    for sweep in sweeps:
        for cell in expand(sweep):
            known = cells.get(cell.fingerprint)
            if known is None or known.n < cell.n:
                cells[cell.fingerprint] = cell
    return list(cells.values())


def _with_n(sweep: Sweep, n: int | None) -> Sweep:
    return sweep if n is None else sweep.model_copy(update={"benchmarks": [{**b, "n": n} for b in sweep.benchmarks]})


def _shared(sweep: Sweep) -> dict[str, Any]:
    data = sweep.model_dump(mode="json", exclude={"name", "policies"})
    return {**data, "benchmarks": [{**entry, "n": None} for entry in data["benchmarks"]]}
