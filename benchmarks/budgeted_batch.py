"""At the same device memory: how much sooner a policy that keeps a quarter finishes the same problems than `full`.

    python benchmarks/budgeted_batch.py [--problems 64] [--rows 32] [--json out.json]
    python benchmarks/budgeted_batch.py --long 3000 --problems 58 --pairs 1     # long chains, random weights

The budget for keys and values is a quarter of what `rows` rows of the full cache need, so `full` decodes a quarter of
these rows at once. Wall time of the whole run, prefills included; the reasoner's problems, `new` tokens each. With
`--long` prompts have 64 tokens, chains so many, and the model has four layers of 192: attention then weighs more, as it
does in a reasoning model. All chains are equally long, so rows end together and run in waves: 58 problems are two waves
of 29 rows, which is what a policy has beside its newcomers.
"""

import time

import torch
from measure import against, arguments, in_turn, random_prompts, reasoner, report, run, synthetic

from reasoner.grammar import make_problem

POLICIES = {
    "full": "full",
    "streaming 25%": {"name": "streaming", "budget": 0.25, "positions": "true"},
    "h2o 25%": {"name": "h2o", "budget": 0.25},
    "snapkv_d 25%": {"name": "snapkv_d", "budget": 0.25, "every": 16},
}


LONG = {**POLICIES, "snapkv_d 25%": {"name": "snapkv_d", "budget": 0.25, "every": 64}}


def main() -> None:
    parser = arguments(__doc__ or "", problems=64, rows=32, new=320, pairs=3, long=0)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    if given.long:
        loaded = synthetic(layers=4, hidden=192, heads=6, kv_heads=2)
        prompts, given.new = random_prompts(loaded, given.problems, 64), given.long
        policies = LONG
    else:
        loaded = reasoner()
        prompts = [loaded.encode(make_problem("ledger", 12345, i).prompt)[1] for i in range(given.problems)]
        policies = POLICIES
    whole = (max(map(len, prompts)) + given.new - 1) * loaded.geometry.token_bytes
    budget, most = given.rows * whole // 4, {}

    def finish(name: str) -> float:
        start = time.perf_counter()
        stats = run(loaded, prompts, policies[name], given.new, max_batch=given.rows, hbm_kv_budget=budget)
        most[name] = stats.max_rows
        return 1 / (time.perf_counter() - start)

    found = in_turn({name: lambda name=name: finish(name) for name in policies}, given.pairs, not given.long)
    report([{"policy": name, "rows": most[name], **against(found, name, "full")} for name in policies], given)


if __name__ == "__main__":
    main()
