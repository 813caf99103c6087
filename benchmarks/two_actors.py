"""How much sooner two workers finish a sweep than one on the same machine, from start to end of the command.

    python benchmarks/two_actors.py [SWEEP] [--pairs 3] [--json out.json]

In turn, each run into a new database; Ray's start and the loading of the model count.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml
from measure import against, arguments, report

from jobs.yaml_file import read_yaml
from tiercache.errors import TierCacheError

DEMO = Path(__file__).parents[1] / "sweeps" / "demo.yaml"


def sweep_s(folder: Path, sweep: str, actors: int) -> float:
    try:
        spec = read_yaml(Path(sweep))
    except TierCacheError as problem:
        sys.exit(str(problem))
    if not isinstance(spec, dict):
        sys.exit(f"{sweep}: a sweep is a mapping of settings.")
    spec["cluster"] = {**spec.get("cluster", {}), "max_actors": actors}
    path = folder / f"{time.monotonic_ns()}.yaml"
    path.write_text(yaml.safe_dump(spec))
    command = [sys.executable, "-m", "jobs.cli", "run", str(path), "--db", str(path.with_suffix(".db"))]
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"the sweep ended with {done.returncode}:\n{done.stderr or done.stdout}")
    return time.perf_counter() - start


def main() -> None:
    parser = arguments(__doc__ or "", pairs=3)
    parser.add_argument("sweep", nargs="?", default=str(DEMO))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found: dict[str, list[float]] = {"one": [], "two": []}
        for _ in range(given.pairs):  # no run to warm up: each starts its own processes, and takes minutes
            for actors, name in enumerate(found, start=1):
                found[name].append(1 / sweep_s(Path(folder), given.sweep, actors))
    report([{"workers": "two", "against": "one", **against(found, "two", "one")}], given)


if __name__ == "__main__":
    main()
