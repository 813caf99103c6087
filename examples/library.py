"""The engine on its own: prompts in, tokens and bytes out. `python examples/library.py`"""

from reasoner.grammar import make_problem
from tiercache import Engine, Limits, ModelSpec, load

problems = [make_problem("registers", seed=12345, index=i) for i in range(2)]
engine = Engine(load(ModelSpec(id="reasoner")), Limits(max_batch=8))
policies = ["full", {"name": "h2o", "budget": 0.5}, {"name": "hierarchy", "hbm": 0.3, "evict": 0, "every": 16}]
for policy in policies:
    for problem, done in zip(problems, engine.generate([p.prompt for p in problems], policy), strict=True):
        text = engine.loaded.decode(list(done.tokens))
        kept = done.ledger.hbm_bytes_mean / done.ledger.full_bytes_mean
        print(f"{policy}: {problem.answer in text}, {len(done.tokens)} tokens, {kept:.0%} of the bytes on the device")
