"""What the tests of the lm-evaluation-harness adapter share. They are skipped where the harness isn't installed."""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from jobs import lm_eval as adapter
from reasoner import WEIGHTS
from reasoner.grammar import Problem, make_problem

N = 16

TASK = r"""
task: chain_lm
dataset_path: json
dataset_kwargs:
  data_files: {{test: {data}}}
  cache_dir: {cache}
test_split: test
output_type: generate_until
doc_to_text: "{{{{prompt}}}}"
doc_to_target: "{{{{answer}}}}"
generation_kwargs: {{until: [], max_gen_toks: 400, do_sample: false}}
metric_list: [{{metric: exact_match, aggregation: mean, higher_is_better: true}}]
filter_list:
  - name: strict-match
    filter: [{{function: regex, regex_pattern: '#### (\d+)'}}, {{function: take_first}}]
metadata: {{version: 1.0}}
"""


@pytest.fixture(scope="session")
def problems() -> list[Problem]:
    return [make_problem("registers", seed=11, index=i, entries=(8, 10), leaves=(4, 6)) for i in range(N)]


@pytest.fixture(scope="session")
def prompts(problems: list[Problem]) -> list[str]:
    return [problem.prompt for problem in problems]


@pytest.fixture(scope="module")
def harness() -> Iterator[Any]:
    found = pytest.importorskip("lm_eval", reason="needs the extra: pip install 'tiercache-eval[lm-eval]'")
    import torch

    adapter.register()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # so small a model only waits for a second one
    yield found
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def loaded(harness: Any) -> Any:
    from tiercache import ModelSpec, load

    return load(ModelSpec(id="reasoner"))


@pytest.fixture(scope="module")
def hf(harness: Any) -> Any:
    from lm_eval.models.huggingface import HFLM

    found = HFLM(str(WEIGHTS), device="cpu", dtype="float32", batch_size=N)
    # Where a checkpoint's own settings say max_new_tokens, `generate` takes that and not the task's max_gen_toks.
    found.model.generation_config.max_new_tokens = None
    return found


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory, problems: list[Problem]) -> Path:
    folder = tmp_path_factory.mktemp("tasks")
    data = folder / "chain.jsonl"
    data.write_text("".join(json.dumps({"prompt": p.prompt, "answer": p.answer}) + "\n" for p in problems))
    (folder / "chain.yaml").write_text(TASK.format(data=data, cache=folder / "cache"))
    return folder


@pytest.fixture(scope="module")
def ours(harness: Any) -> Callable[..., Any]:
    """Our model for the harness, with its arguments."""
    from jobs.lm_eval.model import TierCacheLM

    return TierCacheLM


@pytest.fixture(scope="module")
def instances(harness: Any) -> Callable[..., list[Any]]:
    """Prompts as requests of the harness, with their generation_kwargs."""
    from lm_eval.api.instance import Instance

    def make(prompts: Sequence[str], task: str = "t", **kwargs: Any) -> list[Any]:
        return [Instance("generate_until", {}, (text, kwargs), i, (task, i, 1)) for i, text in enumerate(prompts)]

    return make
