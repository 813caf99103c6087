"""What Proposition 1 came to on every stored problem, as blocks."""

from collections.abc import Iterator, Sequence

from jobs.papers.blocks import Block, Heading, Paragraph, Table
from jobs.papers.proposition import TINY_GAP, Checked, Flip

QUERIES = ("db/samples.py", "jobs/papers/proposition.py")
SHOWN_FLIPS = 100


def proposition(checked: Sequence[Checked]) -> Iterator[Block]:
    yield Heading(2, "Proposition 1: without eviction the tiers change nothing")
    if not checked:
        yield Paragraph("Not checked: this database has no cell that moves all tokens between tiers and evicts none.")
        return
    flips = [flip for each in checked for flip in each.flips]
    compared = sum(each.compared for each in checked)
    yield Paragraph(
        "At 0% eviction attention over the union of the tiers is the full cache's, so all HBM ratios have to give the "
        "same text, problem by problem. Each stored generation of these cells is compared with the full cache's, "
        "character by character; this model's tokenizer gives one text for each sequence of tokens."
    )
    columns = ("policy", "sweep", "generations compared", "equal", "different", "of these explained")
    rows = tuple(_row(each) for each in checked)
    sources = dict.fromkeys(
        f"db.queries.stored_generations(engine, {name!r})"
        for each in checked
        for name in (each.cell.fingerprint, *(flip.full.fingerprint for flip in each.flips[:1]))
    )
    yield Table(columns, rows, tuple(sources), (2, 3, 4, 5), QUERIES)
    yield Paragraph(_summary(compared, flips))
    if flips:
        yield from _flips(flips)


def _row(each: Checked) -> tuple[str, ...]:
    different = len(each.flips)
    explained = sum(flip.explained for flip in each.flips)
    counts = (each.compared, each.compared - different, different)
    return each.cell.policy, each.evidence.sweep.name, *map(str, counts), str(explained) if different else "–"


def _summary(compared: int, flips: Sequence[Flip]) -> str:
    if not flips:
        return f"All {compared:,} generations are the full cache's: in float32 no near-tie between two tokens flipped."
    explained = sum(flip.explained for flip in flips)
    words = f"{compared - len(flips):,} of {compared:,} generations are the full cache's. Of the other {len(flips):,}, "
    words += f"{explained:,} are near-ties of float32: the two tokens' logits are at most {TINY_GAP:g} apart, and in "
    words += "float64 both policies give the same tokens."
    if unasked := sum(flip.looked is None for flip in flips):
        words += f" {unasked:,} were not looked at with the model yet: tiercache papers does it."
    if wrong := len(flips) - explained - unasked:
        words += f" {wrong:,} are not explained by rounding and contradict the proposition."
    return words


def _flips(flips: Sequence[Flip]) -> Iterator[Block]:
    rows = tuple(_flip(flip) for flip in flips[:SHOWN_FLIPS])
    columns = ("policy", "problem", "repeat", "first token that differs", "logit gap there", "same in float64")
    source = "db.queries.list_events(engine, sweep): kind near_tie"
    yield Table(columns, rows, (source,), (2, 3, 4), ("db/progress.py", "jobs/papers/ties.py"))
    if len(flips) > SHOWN_FLIPS:
        yield Paragraph(f"{len(flips) - SHOWN_FLIPS:,} more are not shown.")


def _flip(flip: Flip) -> tuple[str, ...]:
    start = flip.cell.policy, flip.ours.problem_id, str(flip.ours.repeat)
    if flip.looked is None:
        return (*start, "–", "–", "not looked at")
    at, gap = flip.looked.get("at"), flip.looked.get("gap")
    same = "yes" if flip.looked.get("same_in_float64") else "no"
    return (*start, "–" if at is None else str(at), "–" if gap is None else f"{gap:.1e}", same)
