"""A plan as tables: what `tiercache plan` prints."""

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from jobs.plan import Plan, PlanRow
from jobs.prices import CARDS, CardPrice
from jobs.report import bytes_text
from tiercache.price import PRICE_FORMULAS


def plan_tables(plan: Plan) -> list[Table]:
    """One table for each model and benchmark: bytes of one sequence, rows that fit, GPUs, GPU hours."""
    groups: dict[tuple[str, str], list[PlanRow]] = {}
    for row in plan.rows:
        groups.setdefault((row.model, row.benchmark), []).append(row)
    return [_plan_table(rows) for rows in groups.values()]


def plan_totals(plan: Plan) -> Text:
    """What all cells come to."""
    lines = [
        f"{len(plan.rows)} cells, {plan.samples:,} samples, at most {plan.new_tokens:,} generated tokens.",
        "Bytes: KV cache of one sequence of the mean prompt and the longest generation; rows: decoded together.",
    ]
    return Text("\n".join(lines + _price_lines(plan)))


def hours_text(hours: float) -> str:
    """Three digits: 0.0123, 1.23, 12.3, 1,234."""
    return f"{hours:,.0f}" if hours >= 100 else f"{hours:.3g}"


def _price_lines(plan: Plan) -> list[str]:
    priced = [row for row in plan.rows if row.prices]
    if not priced:
        return ["GPU hours: –, since no GPU is planned for (engine.device: cuda asks for one)."]
    bound = "no less than" if plan.efficiency == 1 else f"at {plan.efficiency:.0%} of the roofline"
    lines = []
    for index, card in enumerate(CARDS):
        hours = [row.prices[index].hours for row in priced]
        known = [each for each in hours if each is not None]
        of = f" for {len(known)} of {len(plan.rows)} cells" if len(known) < len(plan.rows) else ""
        lines.append(f"{card}: {bound} {hours_text(sum(known))} GPU h{of}." if known else f"{card}: – for all cells.")
    sources = ", or ".join(SOURCES[source] for source in dict.fromkeys(row.lengths.source for row in priced))
    lines += [
        f"GPU h: a lower bound (roofline){_divided(plan.efficiency)} for generations as long as {sources}.",
        *(f"  {name} = {formula}" for name, formula in PRICE_FORMULAS.items()),
    ]
    return lines


def _divided(efficiency: float) -> str:
    return "" if efficiency == 1 else f", divided by the efficiency {efficiency:g},"


SOURCES = {
    "limit": "max_new_tokens allows (the worst case; --mean-tokens or --db say better)",
    "given": "--mean-tokens says",
    "measured": "the policy's stored samples are in the mean",
    "other policies": "other policies' stored samples are in the mean (*)",
}


def _plan_table(rows: Sequence[PlanRow]) -> Table:
    first, priced = rows[0], any(row.prices for row in rows)
    lengths = f"{first.prompt_tokens:,} prompt tokens, {first.new_tokens:,} new at most"
    title = Text(f"{first.model} on {first.benchmark}", style="bold")
    title.append(f"   {first.samples:,} samples per policy, {lengths}", style="dim")
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("policy", overflow="fold")
    prices = ("new\ntokens", *(f"{card}\nGPU h" for card in CARDS)) if priced else ()
    for name in ("device\npeak", "of full", "host\npeak", "full\ncache", "rows", "GPUs", *prices):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            Text(row.policy),
            bytes_text(row.device_peak_bytes),
            f"{row.device_peak_bytes / row.full_bytes:.0%}" if row.device_peak_bytes and row.full_bytes else "–",
            bytes_text(row.host_peak_bytes),
            bytes_text(row.full_bytes),
            "–" if row.rows is None else str(row.rows),
            "–" if row.gpus is None else f"{row.gpus:g}",
            *([_length(row), *map(_price, row.prices)] if priced else []),
        )
    if priced:
        table.add_row("together", *[""] * 7, *(_sum([row.prices[i] for row in rows]) for i in range(len(CARDS))))
    return table


def _length(row: PlanRow) -> str:
    return f"{row.lengths.mean:,.0f}{'*' if row.lengths.source == 'other policies' else ''}"


def _price(found: CardPrice) -> str:
    """A dash where there is no price; if that is since one card is too small, how many it takes."""
    if found.hours is not None:
        return hours_text(found.hours)
    return "–" if found.gpus is None else f"– ({found.gpus} GPUs)"


def _sum(found: Sequence[CardPrice]) -> str:
    known = [each.hours for each in found if each.hours is not None]
    return hours_text(sum(known)) if known else "–"
