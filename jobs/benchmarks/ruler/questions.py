"""Question answering: the documents with the answer among as many others as fit."""

from collections.abc import Iterator, Sequence
from random import Random

from jobs.benchmarks.ruler import texts
from jobs.benchmarks.ruler.lexicon import shuffled
from jobs.benchmarks.ruler.sample import Draft, Prompt
from jobs.benchmarks.ruler.sources import Question

_TASK = "Answer the question at the end from the documents below. Write the answer alone, without an explanation."


def draft_question(question: Question, documents: Sequence[str], key: str) -> Draft:
    """The draft of one question; filler is counted in characters of other documents, the last of which may be cut.

    Documents close to the right ones come first, then others. None of them contains a right one.

    Args:
        documents: all that there are, each once.
        key: seed of everything random.
    """
    filler = texts.Filler(_others(question, documents, Random(f"{key}/documents")))
    rng = Random(f"{key}/order")
    keys = [rng.random() for _ in question.gold]

    def build(amount: int) -> Prompt:
        shown = [*question.gold, *filler.take(amount)]
        keys.extend(rng.random() for _ in range(len(shown) - len(keys)))
        order = sorted(range(len(shown)), key=keys.__getitem__)
        body = "\n\n".join(f"Document {place}:\n{shown[index]}" for place, index in enumerate(order, start=1))
        places = [order.index(index) + 1 for index in range(len(question.gold))]
        prompt = f"{_TASK}\n\n{body}\n\nQuestion: {question.text}"
        return prompt, {"documents": len(shown), "positions": places}

    most = sum(map(len, documents)) + len(documents)
    return Draft("Answer:", question.answers, build, texts.TOKENS_PER_CHAR, most=most)


def _others(question: Question, documents: Sequence[str], rng: Random) -> Iterator[str]:
    seen: set[str] = set()
    near = list(dict.fromkeys(question.near))
    for source in (near, documents):
        for document in shuffled(source, rng):
            if document not in seen and not any(gold in document for gold in question.gold):
                seen.add(document)
                yield document
