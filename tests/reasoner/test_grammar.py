"""Problems are deterministic, solvable from the prompt alone, and hard in the way they claim."""

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reasoner.grammar import DEFAULT_ENTRIES, DIFFICULTIES, Problem, make_problem
from reasoner.tokenizer import build_tokenizer

ENTRY = re.compile(r"(x\d+) (x\d+) (x\d+) (\S+) ;")
QUERY = re.compile(r"\?[abcd] (x\d+)")

problems = st.builds(
    make_problem,
    st.sampled_from(DIFFICULTIES),
    st.integers(0, 2**32 - 1),
    st.integers(0, 10**6),
)


def interpret(prompt: str) -> str:
    """The answer, worked out from the prompt by other means than the generator's."""
    memory: dict[str, int] = {}
    for statement in prompt.split(";"):
        match statement.split():
            case [name, value] if value.startswith("="):
                memory[name] = int(value[1:])
            case [name, operand, again, second]:
                assert name == again
                addend = int(second[1:]) if second.startswith("+") else memory[second]
                memory[name] = (memory[operand] + addend) % 10
    return "".join(str(memory[name]) for name in QUERY.findall(prompt))


@given(problems)
def test_the_prompt_determines_the_answer(problem: Problem) -> None:
    assert problem.answer == interpret(problem.prompt)
    assert problem.chain.endswith(f"#### {problem.answer}")
    assert re.search(r"#### (\-?[0-9\.\,]+)", problem.chain).group(1) == problem.answer  # type: ignore[union-attr]


@given(problems)
def test_every_value_in_the_chain_stands_behind_its_own_name(problem: Problem) -> None:
    first: dict[str, str] = dict(re.findall(r"(x\d+) =(\d) ;", problem.prompt))
    for name, value in re.findall(r"(x\d+) =(\d)", problem.chain):
        assert first.setdefault(name, value) == value


@given(st.integers(0, 2**32 - 1), st.integers(0, 1000))
def test_a_register_is_live_when_read_and_read_once(seed: int, index: int) -> None:
    prompt = make_problem("registers", seed, index).prompt
    live = set(re.findall(r"(x\d+) =\d ;", prompt))
    for name, operand, _, _ in ENTRY.findall(prompt):
        live.remove(operand)  # KeyError: not defined yet, or read before
        live.add(name)
    asked = QUERY.findall(prompt)
    assert len(set(asked)) == 4
    assert set(asked) <= live


@given(st.integers(0, 2**32 - 1), st.integers(0, 1000))
def test_a_ledger_entry_reads_the_result_before_it(seed: int, index: int) -> None:
    prompt = make_problem("ledger", seed, index).prompt
    names = re.findall(r"(x\d+) =\d ;", prompt)
    for name, operand, _, previous in ENTRY.findall(prompt):
        assert previous == names[-1]
        assert operand in names[:-1]
        names.append(name)


@given(problems)
def test_names_are_consecutive_and_distinct(problem: Problem) -> None:
    numbers = [int(n) for n in re.findall(r"(?:^|; )x(\d+)", problem.prompt)]
    assert len(set(numbers)) == len(numbers)
    assert all((b - a) % 64 == 1 for a, b in pairwise(numbers))


@pytest.mark.parametrize("difficulty", DIFFICULTIES)
def test_default_chains_have_200_to_450_tokens(difficulty: str) -> None:
    tokenizer = build_tokenizer()
    for entries in DEFAULT_ENTRIES:
        problem = make_problem(difficulty, 1, 0, entries=(entries, entries))
        assert problem.entries == entries
        assert 200 <= len(tokenizer(problem.chain, add_special_tokens=False)["input_ids"]) <= 450


def test_a_problem_depends_on_nothing_but_its_arguments() -> None:
    problem = make_problem("registers", 7, 3, entries=(2, 2), leaves=(4, 4))
    assert problem == make_problem("registers", 7, 3, entries=(2, 2), leaves=(4, 4))
    assert problem.prompt == FROZEN_PROMPT  # data sets must stay what they were
    assert len({make_problem("registers", 7, i).prompt for i in range(100)}) == 100
    assert make_problem("registers", 7, 3).prompt != make_problem("registers", 8, 3).prompt


@pytest.mark.parametrize(
    "arguments",
    [
        ("poems", 0, 0),
        ("ledger", -1, 0),
        ("ledger", 0, -1),
        ("ledger", 0, 0, (5, 4)),
        ("ledger", 0, 0, (0, 4)),
        ("registers", 0, 0, (1, 4), (3, 6)),
        ("registers", 0, 0, (1, 51), (6, 14)),
    ],
)
def test_impossible_arguments_are_refused(arguments: tuple[object, ...]) -> None:
    with pytest.raises(ValueError, match=r"difficulty|seed|entries|leaves"):
        make_problem(*arguments)  # type: ignore[arg-type]


FROZEN_PROMPT = "x33 =2 ; x34 =4 ; x35 =2 ; x36 =3 ; x37 x33 x37 +6 ; x38 x36 x38 +7 ; ?a x38 ?b x37 ?c x35 ?d x34 ;"
