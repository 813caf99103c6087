"""A policy inside transformers' own generate. `python examples/attach.py`"""

from transformers import AutoModelForCausalLM, AutoTokenizer

import tiercache
from reasoner import WEIGHTS
from reasoner.grammar import make_problem

model = AutoModelForCausalLM.from_pretrained(WEIGHTS).eval()
tokenizer = AutoTokenizer.from_pretrained(WEIGHTS, padding_side="left")
problems = [make_problem("registers", seed=12345, index=i) for i in range(2)]
inputs = tokenizer([problem.prompt for problem in problems], return_tensors="pt", padding=True)

with tiercache.attach(model, "hierarchy", hbm=0.3, evict=0.01, every=16, recent=32) as attached:
    outputs = model.generate(**inputs, max_new_tokens=400, do_sample=False)

new = outputs[:, inputs["input_ids"].shape[1] :]
for problem, tokens, ledger in zip(problems, new, attached.ledgers, strict=True):
    text = tokenizer.decode(tokens, skip_special_tokens=True)
    print(
        f"{problem.answer in text}: {ledger.hbm_tokens} tokens on the device, {ledger.ddr_tokens} on the host, "
        f"{ledger.evicted_tokens} evicted"
    )
