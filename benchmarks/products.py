"""A decoder layer's products by the CPU's kernel against torch's own: times as fast, by rows.

    python benchmarks/products.py [--rows 1 8 31 64 512] [--json out.json]

Both multiply the same float32 rows with the weights of as many layers as don't fit into a processor's caches, by turns.
Torch's weights lie as a model has them, the kernel's as it reads them.
"""

import time
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from measure import against, arguments, in_turn, report

from tiercache.kernels.layer import Packed, kernels

SHAPES = {  # inputs, outputs
    "192 to 1,152": (192, 1152),
    "SmolLM2's queries, keys, values": (576, 960),
    "SmolLM2's gates": (576, 3072),
    "SmolLM2's way back": (1536, 576),
}
BYTES = 32 * 2**20  # of weights in turn


def timed(products: Sequence[Callable[[torch.Tensor], torch.Tensor]], x: torch.Tensor) -> float:
    """Products per second."""
    start = time.perf_counter()
    for product in products:
        product(x)
    return len(products) / (time.perf_counter() - start)


def main() -> None:
    parser = arguments(__doc__ or "", rows=[1, 8, 31, 64, 512], pairs=15)
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=SHAPES)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    found = kernels()
    if found is None:
        raise SystemExit("there is no C compiler, or TIERCACHE_NATIVE=0: there is nothing to compare.")
    table = []
    for name in given.shapes:
        inputs, outputs = SHAPES[name]
        weights = [torch.randn(outputs, inputs) for _ in range(1 + BYTES // (4 * inputs * outputs))]
        packed = [Packed(found, weight, None) for weight in weights]
        theirs = [lambda x, weight=weight: F.linear(x, weight) for weight in weights]
        for rows in given.rows:
            x = torch.randn(rows, inputs)
            torch.testing.assert_close(packed[0](x), theirs[0](x), rtol=1e-3, atol=1e-3)
            runs = {
                "torch": lambda x=x, theirs=theirs: timed(theirs, x),
                "ours": lambda x=x, ours=packed: timed(ours, x),
            }
            rates = in_turn(runs, given.pairs)
            flops = 2 * rows * inputs * outputs * max(rates["ours"]) / 1e9
            table.append({"shape": name, "rows": rows, **against(rates, "ours", "torch"), "GFLOP/s": flops})
    report(table, given)


if __name__ == "__main__":
    main()
