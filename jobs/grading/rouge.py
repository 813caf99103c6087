"""ROUGE-L at summary level, as the PyPI package `rouge` 1.0.1 computes it for LongBench (2308.14508).

The package fills a quadratic table in Python and recurses once a word, so that it gives up at a thousand words. Here
the table is one bit vector a row (Crochemore et al. 2001), and the walk through it is a loop.
"""

MAX_CHARS = 40_000  # of either text; 512 generated tokens are far below it


def rouge_l(prediction: str, reference: str) -> float:
    """F of the distinct words in the union of longest common subsequences, sentence by sentence; 0 to 1.

    Sentences end at full stops; words are case-sensitive and keep their punctuation. The package adds 1e-8 below the
    fraction bar, which would keep a perfect answer from being perfect; left out here.
    """
    guessed, expected = _sentences(prediction), _sentences(reference)
    common: set[str] = set()
    for sentence in expected:
        for candidate in guessed:
            if not set(sentence).isdisjoint(candidate):
                common |= _common_words(sentence, candidate)
    if not common:
        return 0.0
    return 2 * len(common) / (_distinct(guessed) + _distinct(expected))


def _sentences(text: str) -> list[tuple[str, ...]]:
    """The distinct sentences as words; a blank one counts as one empty word, as in the package."""
    parts = [tuple(part.split()) or ("",) for part in text[:MAX_CHARS].split(".") if part]
    return list(dict.fromkeys(parts))


def _distinct(sentences: list[tuple[str, ...]]) -> int:
    return len({word for sentence in sentences for word in sentence})


def _common_words(left: tuple[str, ...], right: tuple[str, ...]) -> set[str]:
    """The words of one longest common subsequence; among equal ones the same as the package's."""
    places: dict[str, int] = {}
    for index, word in enumerate(right):
        places[word] = places.get(word, 0) | 1 << index
    everywhere = (1 << len(right)) - 1
    row, rows = everywhere, []  # bit j is 0 where the length grows from column j to j + 1
    for word in left:
        hits = row & places.get(word, 0)
        row = ((row + hits) | (row - hits)) & everywhere
        rows.append(row)
    words = set()
    above, before = len(left), len(right)
    while above and before:
        if left[above - 1] == right[before - 1]:
            words.add(left[above - 1])
            above, before = above - 1, before - 1
        elif rows[above - 1] >> (before - 1) & 1:
            before -= 1
        else:
            above -= 1
    return words
