"""Variable tracing: assignments that hand one value from name to name, spread through noise."""

from random import Random
from string import ascii_uppercase

from jobs.benchmarks.ruler import texts
from jobs.benchmarks.ruler.needles import listed
from jobs.benchmarks.ruler.sample import Draft, Prompt

HOPS = 4
_TASK = (
    "Assignments of variables are spread through the text below. Keep track of them: you will be asked which variables "
    "hold a value, given to them directly or by way of others."
)
_EXAMPLE_LINES = 4  # of noise


def draft_tracing(key: str) -> Draft:
    """The draft of one sample, behind a solved one with shorter names; filler is counted in characters."""
    rng = Random(f"{key}/chain")
    value, other = map(str, rng.sample(range(10**4, 10**5), 2))
    names, example_names = _names(rng, 5), _names(rng, 3)
    depths, example_depths = (sorted(rng.random() for _ in range(HOPS + 1)) for _ in range(2))
    example, _ = texts.place([texts.NOISE] * _EXAMPLE_LINES, _chain(example_names, other), example_depths)
    lines = _chain(names, value)
    filler = texts.Filler(texts.noise())
    opening = f"{_section(example, other)}\n{_prefix(other)} {listed(example_names)}."

    def build(amount: int) -> Prompt:
        haystack, placed = texts.place(filler.take(amount), lines, depths)
        return f"{opening}\n\n{_section(haystack, value)}", {"needles": lines, "depths": placed}

    return Draft(_prefix(value), tuple(names), build, texts.TOKENS_PER_CHAR)


def _names(rng: Random, letters: int) -> list[str]:
    """Distinct names of random capitals that no word of the noise contains."""
    names: dict[str, None] = {}
    while len(names) <= HOPS:
        name = "".join(rng.choices(ascii_uppercase, k=letters))
        if name not in texts.NOISE.upper():
            names[name] = None
    return list(names)


def _chain(names: list[str], value: str) -> list[str]:
    return [f"Let {name} = {source}." for name, source in zip(names, [value, *names], strict=False)]


def _section(lines: list[str], value: str) -> str:
    text = "\n".join(lines)
    return f"{_TASK}\n\n{text}\n\nWhich {HOPS + 1} variables hold the value {value} at the end of this text?"


def _prefix(value: str) -> str:
    return f"At the end of this text, the value {value} is held by"
