"""A store in which every text that comes from outside tries something: markup, scripts, links, tricks of Markdown."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta
from typing import Any

from db.rows import CellRow, DiagnosticRow, SampleRow
from db.writer import Writer

BEGIN = datetime(2030, 1, 1, 12, tzinfo=UTC)
OWN = "window.owned=1"
SCRIPT = f"<script>{OWN}</script>"
# What must not happen if one of these is interpreted can be seen from outside: `owned` is set, a request goes to
# example.invalid, or there is a link, an icon or a formula on the page.
TRICKS = [
    SCRIPT,
    f'"><img src="http://example.invalid/x.png" onerror="{OWN}">',
    f"<svg onload={OWN}></svg>",
    f"[click](javascript:{OWN}) <a href='javascript:{OWN}'>click</a> ![x](http://example.invalid/y.png)",
    "**bold** _thin_ ~~gone~~ $x^2$ $$\\frac{1}{2}$$ `code` # heading",
    ":material/delete: :red[red] :smile: :green-badge[ok]",
    "</code></pre></textarea></title><h1>big</h1>",
    "%{customdata} {{7*7}} ${7*7} <%= 7 %> \\u003cb\\u003e &lt;b&gt;",
    "‮right to left‬ \x1b[31mred \x00nul \r\n tab\t \ufeff\u2028",
    '=HYPERLINK("http://example.invalid")',
    "| a | b |\n|---|---|\n```\n~~~\n---",
]
ALL = " ".join(TRICKS)
MEGABYTE = "x" * 1_000_000
NAME = f"m{TRICKS[1]}{TRICKS[3]}{TRICKS[4]}{TRICKS[5]}"  # of a model, a benchmark, a policy: as text, it is all there
GRID = {1: (0.25, 0.0), 2: (0.25, 0.03), 3: (0.5, 0.0), 6: (0.5, 0.03)}  # place of a cell: hbm, evict


def fill(url: str, made_up: Any) -> None:
    """Write one sweep whose names, texts, errors, log and machines are hostile, and one sample of a megabyte a line."""
    rows = [_named(made_up.cell(place, 4), place) for place in (0, *GRID, 4, 5)]
    with Writer.open(url) as writer:
        spec = {"name": ALL, "repeats": 1, ALL: [ALL]}
        writer.register_sweep("sweep-1", f"sweep {ALL}", spec, {"host": ALL}, rows, created_at=BEGIN)
        for place, row in zip((0, *GRID, 4, 5), rows, strict=True):
            samples = [_hostile(sample, number) for number, sample in enumerate(made_up.samples(row, place, 4))]
            samples[3] = dataclasses.replace(made_up.failed(row, samples[3].problem_id), error=ALL, prompt=ALL)
            writer.record(samples)
            shard = made_up.shard(row, place, "sweep-1")
            names = {"actor": f"actor {ALL}", "host": f"host {ALL}", "device": f"device {ALL}"}
            writer.record_shard(dataclasses.replace(shard, **names))
            writer.event("sweep-1", f"kind {ALL}", f"event {ALL}", fingerprint=row.fingerprint, data={ALL: ALL})
            writer.record_diagnostics([_diagnostic(sample) for sample in samples[:3]])
        writer.set_state("sweep-1", "finished")


def _named(row: CellRow, place: int) -> CellRow:
    """The full cache as it is called everywhere, for it is looked for by name; a grid of hierarchies; the rest."""
    changes: dict[str, Any] = {"model": f"model {NAME}", "benchmark": f"benchmark {NAME}", "config": {ALL: ALL}}
    if place in GRID:
        hbm, evict = GRID[place]
        changes |= {"policy": f"hierarchy hbm={hbm} evict={evict} {NAME}", "policy_name": "hierarchy"}
        changes["config"] = {"policy": {"placement": {"hbm": hbm, "evict": evict}, ALL: ALL}}
    elif place:
        preset = f"preset {NAME}" if place == 5 else row.policy_name
        changes |= {"policy": f"{row.policy} {NAME}", "policy_name": preset}
    return dataclasses.replace(row, **changes)


def _hostile(sample: SampleRow, number: int) -> SampleRow:
    long = f"{MEGABYTE}\n{SCRIPT}" if number == 2 else ""
    return dataclasses.replace(
        sample,
        problem_id=f"{number} {NAME}",
        prompt=f"prompt {ALL}",
        output=f"output {ALL}{long}",
        extracted=ALL,
        reference=ALL,
        grader=ALL,
        finished_at=BEGIN + timedelta(seconds=number),
    )


def _diagnostic(sample: SampleRow) -> DiagnosticRow:
    return DiagnosticRow(
        fingerprint=sample.fingerprint,
        problem_id=sample.problem_id,
        repeat=sample.repeat,
        steps=300,
        fmm_acc=0.1,
        churn=0.2,
        recall=0.9,
        kl=0.01,
        lir_eligible=10,
        lir_rescued=3,
        first_divergent=17,
        detail={ALL: ALL},
    )
