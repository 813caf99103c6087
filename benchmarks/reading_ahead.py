"""How far ahead the CPU's attention kernel should ask for keys and values: time of a layer's call, by distance.

    python benchmarks/reading_ahead.py [--ahead 0 2048 6144 12288] [--json out.json]

Builds the kernel once for each distance (bytes; 0: only what the processor does by itself) and calls all builds by
turns, with a product of small matrices between calls, as a model has it. Printed is the ratio to no distance at all,
for shapes whose keys and values fit into a processor's cache and for some that don't.
"""

import ctypes
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from measure import against, arguments, in_turn, report

from tiercache.kernels.build import FLAGS, FOLDER
from tiercache.kernels.native import Kernel
from tiercache.kernels.table import RowTable
from tiercache.store import Geometry, TierStore

SHAPES = {  # rows, KV heads, queries of each, head size, tokens, layers
    "reasoner": (64, 2, 2, 32, 300, 3),
    "SmolLM2 512": (8, 3, 3, 64, 512, 4),
    "SmolLM2 4,096": (4, 3, 3, 64, 4096, 4),
    "8B 1,024": (8, 8, 4, 128, 1024, 4),
}


def build(folder: Path, ahead: int) -> Kernel:
    source = (FOLDER / "decode_attention.c").read_text()
    changed, times = re.subn(r"enum \{ AHEAD = \d+ \};", f"enum {{ AHEAD = {ahead} }};", source)
    assert times == 1, "the kernel has its distance in one place"
    if not ahead:
        changed = changed.replace("__builtin_prefetch", "(void)sizeof")
    file, library = folder / f"{ahead}.c", folder / f"{ahead}.so"
    file.write_text(changed)
    subprocess.run(["cc", *FLAGS, "-fopenmp", "-shared", f"-I{FOLDER}", file, "-o", library, "-lm"], check=True)
    return Kernel(ctypes.CDLL(str(library)))


def caller(kernel: Kernel, store: TierStore, group: int) -> Callable[[], float]:
    g, tokens = store.geometry, store.used()
    table = RowTable(kernel, [[store]], torch.full((g.layers, store.rows, g.kv_heads), tokens - 1), group, 0.2)
    query = torch.randn(store.rows, g.query_heads, 1, g.head_dim)
    new = torch.randn(store.rows, g.kv_heads, 1, g.head_dim)
    weight, hidden = torch.randn(768, 128), torch.randn(64, 128)

    def call() -> float:
        spent = 0.0
        for layer in range(g.layers):
            for _ in range(4):
                F.linear(hidden, weight)
            start = time.perf_counter()
            table(layer, query, new, new, weights=False)
            spent += time.perf_counter() - start
        return 1 / spent

    return call


def main() -> None:
    parser = arguments(__doc__ or "", ahead=[0, 2048, 6144, 12_288], pairs=30)
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=SHAPES)
    given = parser.parse_args()
    if shutil.which("cc") is None:
        parser.error("needs a C compiler (cc) to build the kernel; none was found")
    if min(given.ahead) < 0:
        parser.error(f"--ahead is a number of bytes from 0 on (got {min(given.ahead)})")
    torch.set_num_threads(given.threads)
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder:
        kernels = {str(ahead): build(Path(folder), ahead) for ahead in sorted({0, *given.ahead})}
        for name in given.shapes:
            count, heads, group, dim, tokens, layers = SHAPES[name]
            store = TierStore(Geometry(layers, heads * group, heads, dim, torch.float32), {}, torch.device("cpu"))
            store.join(count)
            store.reserve(0, tokens)
            store.extents[:] = [tokens] * count
            for side in "kv":
                store.planes[side].normal_()
            found = in_turn({ahead: caller(kernel, store, group) for ahead, kernel in kernels.items()}, given.pairs)
            rows += [{"shape": name, "ahead": int(ahead), **against(found, ahead, "0")} for ahead in kernels]
    report(rows, given)


if __name__ == "__main__":
    main()
