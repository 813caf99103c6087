"""Every policy on the embedded reasoner, and the control of positions: writes docs/results/chain.md.

    python benchmarks/chain_results.py [--n 200] [--diagnose 8] [--db chain_results.db] [--out docs/results/chain.md]

Runs sweeps/chain_policies.yaml and sweeps/chain_positions.yaml into a database (what is there already is not computed
again), adds the diagnostics of a few problems for each policy, and writes the page. About an hour on 2 cores.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import torch

from db.connection import open_engine, parse_url
from db.paired import PairedDelta, paired_deltas
from db.progress import list_sweeps
from db.summaries import CellSummary, cell_summaries
from jobs.spec import load_sweep
from reasoner.grammar import make_problem
from tiercache.diagnostics.diagnose import diagnose
from tiercache.diagnostics.trace import Recorder
from tiercache.diagnostics.values import Diagnostics
from tiercache.engine import Engine, Limits
from tiercache.model import LoadedModel, load
from tiercache.model_spec import ModelSpec
from tiercache.policy import Policy
from tiercache.requests import Request, Sampling

ROOT = Path(__file__).parents[1]
POLICIES, POSITIONS = (ROOT / "sweeps" / name for name in ("chain_policies.yaml", "chain_positions.yaml"))
CONTROL = "random"  # with the prompt kept: a policy that can't beat it has no signal


def run(sweep: Path, database: Path, n: int) -> None:
    command = ["-c", "from jobs.cli import main; main()", "run", str(sweep), "--db", str(database), "--n", str(n)]
    subprocess.run([sys.executable, *command], check=True)


def summaries(database: Path, name: str) -> tuple[list[CellSummary], dict[str, PairedDelta]]:
    """The newest sweep of that name, and each cell against its full cache."""
    engine = open_engine(str(parse_url(str(database))), read_only=True)
    sweep = next(sweep for sweep in list_sweeps(engine) if sweep.name == name)
    cells = cell_summaries(engine, sweep.id)
    full = next(cell for cell in cells if cell.policy == "full")
    return cells, paired_deltas(engine, full.fingerprint, [cell.fingerprint for cell in cells])


def diagnostics(
    loaded: LoadedModel, policies: Iterable[Policy], difficulty: str, n: int
) -> dict[str, list[Diagnostics]]:
    """Of the first problems of the table, by policy."""
    problems = [make_problem(difficulty, 12345, index) for index in range(n)]
    requests = [Request(p.id, tuple(loaded.encode(p.prompt)[1]), Sampling(max_new_tokens=400)) for p in problems]
    found: dict[str, list[Diagnostics]] = {}
    for policy in policies:
        recorder = Recorder()
        by_key = {request.key: request for request in requests}
        for done in Engine(loaded, Limits(max_batch=n)).run(requests, policy, probe=recorder):
            trace = recorder.traces.pop(done.key)
            found.setdefault(policy.label, []).append(diagnose(loaded, policy, by_key[done.key], done.tokens, trace))
    return found


def mean(values: Iterable[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{sum(known) / len(known):.3f}" if known else "–"


def percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f}"


def accuracy(cell: CellSummary) -> str:
    return f"{percent(cell.accuracy)} [{percent(cell.accuracy_low)}, {percent(cell.accuracy_high)}]"


def row(cell: CellSummary, delta: PairedDelta | None, found: list[Diagnostics] | None) -> str:
    paired = "–" if delta is None else f"{100 * delta.delta:+.1f} [{100 * delta.low:+.1f}, {100 * delta.high:+.1f}]"
    numbers = [
        f"`{cell.policy}`",
        percent(cell.resident_share),
        percent(1 - cell.kept_share if cell.kept_share is not None else None),
        accuracy(cell),
        paired,
        percent(cell.truncation_rate),
    ]
    for name in ("recall", "fmm_acc", "churn", "output_error", "kl"):
        numbers.append(mean(getattr(each, name) for each in found or []))
    return "| " + " | ".join(numbers) + " |"


HEAD = (
    "| policy | device bytes, % of full | evicted, % | accuracy, % [95%] | against full, points [95%] | cut off, % "
    "| recall | FMM | churn | output error | KL |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
)


def verdicts(cells: list[CellSummary]) -> list[str]:
    """Who beats chance at the same budget: intervals of accuracy that don't overlap."""
    lines = []
    for control in (
        cell for cell in cells if cell.policy.startswith(f"{CONTROL} budget=") and "scope" not in cell.policy
    ):
        budget = control.policy.removeprefix(f"{CONTROL} budget=")
        at = [cell for cell in cells if f"budget={budget}" in cell.policy and cell is not control]
        better = [cell for cell in at if (cell.accuracy_low or 0) > (control.accuracy_high or 0)]
        lighter = [cell for cell in better if (cell.resident_share or 1) <= (control.resident_share or 0) + 0.01]
        names = ", ".join(f"`{cell.policy.replace(f' budget={budget}', '')}`" for cell in lighter) or "none"
        heavier = ", ".join(
            f"`{cell.policy.replace(f' budget={budget}', '')}` ({percent(cell.resident_share)}%)"
            for cell in better
            if cell not in lighter
        )
        lines.append(
            f"* **{budget.removeprefix('bytes:')}**: chance with the prompt kept has {accuracy(control)} at "
            f"{percent(control.resident_share)}% of the bytes. Better, at no more bytes: {names}."
            + (f" Better with more bytes: {heavier}." if heavier else "")
        )
    return lines


def page(
    policies: tuple[list[CellSummary], dict[str, PairedDelta]],
    positions: tuple[list[CellSummary], dict[str, PairedDelta]],
    found: dict[str, list[Diagnostics]],
    n: int,
    diagnosed: int,
) -> str:
    cells, deltas = policies
    control, control_deltas = positions
    lines = [
        "# Every policy on the embedded reasoner",
        "",
        "Written by `python benchmarks/chain_results.py`; change the script, not this page.",
        "",
        f"Model: `reasoner` in float32. Benchmark: {cells[0].benchmark}, {n} problems, greedy. The sweep is "
        "`sweeps/chain_policies.yaml`; intervals between events are shortened there, since chains have 300 tokens and "
        "not thousands. A ranking here is a statement about one set of weights of a model with a million "
        "parameters: it says which signals can find what is needed again, not which will at 7B.",
        "",
        "Device bytes are what a sequence really held on the device, mean over its decoding, scales and zero points "
        "included, over what the full cache held at the same steps. Policies that protect the whole prompt can't reach "
        "small budgets. Accuracy: 95% Wilson interval. Against full: paired by problem. Cut off: the token limit came "
        f"first. Diagnostics (definitions in [diagnostics](../diagnostics.md)) are means over the first {diagnosed} "
        "problems: attention recall, future missed mass (32 steps, first tokens left out), selection churn, relative "
        "output error, KL divergence from the full cache's next token. All but the last are of what is held, so Quest, "
        "which holds everything and reads a part, misses nothing there.",
        "",
        HEAD,
        *(row(cell, deltas.get(cell.fingerprint), found.get(cell.policy)) for cell in cells),
        "",
        "## Does a signal beat chance?",
        "",
        "Better: the whole 95% interval lies above that of `random`, which keeps the prompt and a random subset.",
        "",
        *verdicts(cells),
        "",
        "## The control of positions",
        "",
        f"The same schedule of evictions (`hierarchy` in device memory only, a share of all candidates, {n} problems "
        f"of {control[0].benchmark}), three ways to number what is left. `rerotated` turns the kept keys; `drifted` "
        "takes a query's position from the number of tokens kept and leaves the keys as they are.",
        "",
        "| policy | evicted, % | accuracy, % [95%] | against full, points [95%] | cut off, % |",
        "|---|--:|--:|--:|--:|",
    ]
    for cell in control:
        delta = control_deltas.get(cell.fingerprint)
        paired = "–" if delta is None else f"{100 * delta.delta:+.1f} [{100 * delta.low:+.1f}, {100 * delta.high:+.1f}]"
        gone = percent(1 - cell.kept_share if cell.kept_share is not None else None)
        lines.append(f"| `{cell.policy}` | {gone} | {accuracy(cell)} | {paired} | {percent(cell.truncation_rate)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=200)
    parser.add_argument("--diagnose", type=int, default=8, help="problems of each policy that are diagnosed")
    parser.add_argument("--db", type=Path, default=Path("chain_results.db"))
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results" / "chain.md")
    parser.add_argument("--policies", type=Path, default=POLICIES)
    parser.add_argument("--positions", type=Path, default=POSITIONS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    specs = [load_sweep(path) for path in (arguments.policies, arguments.positions)]
    for path in (arguments.policies, arguments.positions):
        run(path, arguments.db, arguments.n)
    found: dict[str, list[Diagnostics]] = {}
    if arguments.diagnose:
        loaded = load(ModelSpec(id="reasoner", dtype="float32"))
        difficulty = str(specs[0].benchmarks[0].get("difficulty", "registers"))
        found = diagnostics(loaded, specs[0].resolved_policies(), difficulty, arguments.diagnose)
    tables = [summaries(arguments.db, spec.name) for spec in specs]
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(page(tables[0], tables[1], found, arguments.n, arguments.diagnose), encoding="utf-8")
    print(json.dumps({"cells": len(tables[0][0]) + len(tables[1][0]), "page": str(arguments.out)}))


if __name__ == "__main__":
    main()
