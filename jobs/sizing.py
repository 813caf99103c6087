"""How many GPUs a worker of a model takes, from planned bytes: of its weights, of its cells' keys and values."""

from collections.abc import Sequence

from cluster.preflight import Node, default_gpus
from jobs.grid import Cell
from jobs.plan import GPU_BYTES, sequence_bytes
from jobs.prompts import estimate_tokens
from jobs.spec import Sweep
from tiercache.blocks import gpus_needed, weights_of
from tiercache.shapes import ModelShape, shape_of


def worker_gpus(sweep: Sweep, cells: Sequence[Cell], available: Sequence[Node]) -> float:
    """GPUs of each worker for these cells, which are of one model: what the sweep says, else what the model takes.

    A GPU is taken to be as large as the smallest of the cluster whose kind is known, else as `plan` assumes it.

    Raises:
        ResourceError: no number of such GPUs is enough.
    """
    asked, usual = sweep.cluster.gpus_per_actor, default_gpus(list(available), sweep.engine.device)
    if asked is not None or not usual:
        return usual if asked is None else asked
    shape = shape_of(cells[0].model)
    weights = weights_of(shape, cells[0].model.dtype) if shape is not None else None
    if shape is None or weights is None:
        return usual
    gpu = min((node.gpu_bytes for node in available if node.gpus and node.gpu_bytes), default=GPU_BYTES)
    return float(gpus_needed(weights, _cache(cells, shape), gpu))


def _cache(cells: Sequence[Cell], shape: ModelShape) -> int:
    """Bytes for keys and values: the budget, else what the longest sequence may hold."""
    budget = cells[0].engine.hbm_kv_budget
    if budget is not None:
        return budget
    return max(
        sequence_bytes(cell.policy, shape, cell.model.dtype, _longest(cell), cell.sampling.max_new_tokens).device
        for cell in cells
    )


def _longest(cell: Cell) -> int:
    return max(1, estimate_tokens(max(len(problem.prompt) for problem in cell.benchmark.load())))


def largest(sweep: Sweep, cells: Sequence[Cell], available: Sequence[Node]) -> float:
    """GPUs of the worker that takes most: where it fits, every other one does."""
    by_model: dict[str, list[Cell]] = {}
    for cell in cells:
        by_model.setdefault(repr(cell.model), []).append(cell)
    return max(worker_gpus(sweep, group, available) for group in by_model.values())
