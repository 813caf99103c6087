"""The report as one file: text first, then the charts' data, and plotly once, if there is anything to draw."""

from __future__ import annotations

import base64
import hashlib
import shlex
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

import yaml
from plotly.offline import get_plotlyjs
from sqlalchemy import Engine

from dashboard.static_report.cells import DASH, accuracy, best, cell_table, diagnostic_table
from dashboard.static_report.charts import WIDE, Chart, charts
from dashboard.static_report.content import Content, Failure, Group, flat, read, without_password
from dashboard.static_report.markup import Column, Value, block, facts, table, text
from dashboard.wording import percent
from db.queries import SweepInfo

UNFINISHED = "The sweep was not finished when this was written: what is here may change."


def report(engine: Engine, sweep: SweepInfo, failures: Sequence[Failure], meanings: Mapping[str, str]) -> str:
    """Return a sweep's report as HTML. It depends on the database alone: the same results give the same bytes.

    `failures` are the reasons of failed samples, the most frequent first; `meanings` says what diagnostics are.
    """
    content = read(engine, sweep)
    drawn = [(group, list(charts(group, content.looks))) for group in content.groups]
    sections = [_summary(content), *(_group(group, found, content, meanings) for group, found in drawn)]
    sections += [_failures(content, failures), _environment(sweep), _specification(sweep), _again(sweep)]
    scripts = [_own("report.js")]
    if any(found for _, found in drawn):
        scripts.insert(0, get_plotlyjs())
    return _page(content, "\n".join(sections), scripts)


def _page(content: Content, body: str, scripts: Sequence[str]) -> str:
    name = text(content.sweep.name)
    links = [("summary", "Summary"), *((group.key, group.title) for group in content.groups)]
    links += [("failures", "Failures"), ("environment", "Environment"), ("specification", "Specification")]
    links.append(("again", "How to reproduce"))
    nav = "".join(f'<li><a href="#{key}">{text(title)}</a></li>' for key, title in links)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(scripts)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<meta name="referrer" content="no-referrer">\n'
        f"<title>{name}: results</title>\n<style>\n{_own('report.css')}</style>\n</head>\n<body>\n"
        '<a class="skip" href="#main">Skip to the results</a>\n'
        f'<header><h1>{name}</h1><nav aria-label="Sections"><ul>{nav}</ul></nav>'
        '<p class="controls"><button type="button" id="print" hidden>Draw all charts and print</button></p>'
        f'</header>\n<main id="main">\n{body}\n</main>\n'
        + "".join(f"<script>{script}</script>\n" for script in scripts)
        + "</body>\n</html>\n"
    )


def _policy(scripts: Sequence[str]) -> str:
    """Nothing is loaded, and no script runs but ours, told by their hashes; plotly sets styles as it draws."""
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" for script in scripts
    )
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; "
        "form-action 'none'"
    )


def _own(name: str) -> str:
    return (files("dashboard.static_report") / name).read_text(encoding="utf-8")


def _summary(content: Content) -> str:
    sweep = content.sweep
    about = [
        ("sweep", sweep.id),
        ("state", sweep.state),
        ("started (UTC)", f"{sweep.created_at:%Y-%m-%d %H:%M:%S}"),
        ("last sign of life (UTC)", f"{sweep.heartbeat_at:%Y-%m-%d %H:%M:%S}"),
        ("cells", f"{sweep.cells:,}"),
        ("samples done", f"{sweep.done:,} of {sweep.expected:,}"),
        ("samples failed", f"{sweep.failed:,}"),
    ]
    parts = [facts("The sweep", about)]
    if sweep.done + sweep.failed < sweep.expected:
        parts.insert(0, f'<p class="warning">{UNFINISHED}</p>')
    if content.groups:
        columns = [Column(name) for name in ("group", "protocol")] + [Column(n, True) for n in ("cells", "samples")]
        columns += [Column(name) for name in ("full cache, accuracy % [95%]", "least bytes not shown to be worse")]
        rows = [_in_short(group) for group in content.groups]
        parts.append(table("Groups of cells that may be compared", columns, rows))
        parts.append(
            "<p>Compare scores within a group only: another protocol means other limits, sampling, data or graders. "
            "<em>Not shown to be worse</em>: the paired 95% interval of the difference from the full cache reaches 0. "
            "With few samples that is soon so: it says how little is known, not that nothing is lost.</p>"
        )
    else:
        parts.append("<p>This sweep has no cells.</p>")
    return f'<section id="summary"><h2>Summary</h2>{"".join(parts)}</section>'


def _in_short(group: Group) -> list[Value]:
    held = [cell for cell in group.cells if (delta := group.deltas.get(cell.fingerprint)) and delta.high >= 0]
    least = best(held)
    if least is not None:
        words = f"{least.policy}: {percent(least.resident_share)} of the full cache's bytes, {len(held)} such policies"
    elif group.full is None:
        words = f"{DASH} the full cache wasn't run under this protocol"
    else:
        words = f"{DASH} {'no bytes were recorded' if held else 'none, or no pair of samples yet'}"
    full = DASH if group.full is None else accuracy(group.full)
    counts = [Value(f"{len(group.cells):,}"), Value(f"{group.samples:,}")]
    return [Value(group.title), Value(group.cells[0].protocol[:12]), *counts, Value(full), Value(words)]


def _group(group: Group, found: Sequence[Chart], content: Content, meanings: Mapping[str, str]) -> str:
    parts = [f"<h2>{text(group.title)}</h2>"]
    if group.samples == 0:
        parts.append("<p>No sample of this group has been judged yet, so there is nothing to draw.</p>")
    elif notes := _notes(group):
        parts.append(f"<p>{text(' '.join(notes))}</p>")
    parts.append('<div class="figures">' + "\n".join(_figure(group, chart) for chart in found) + "</div>")
    filtered = f"rows-{group.key}"
    parts.append(
        f'<p class="controls"><label for="{filtered}">Show policies with</label> '
        f'<input type="search" id="{filtered}" class="filter" autocomplete="off"> '
        f'<output for="{filtered}"></output></p>'
    )
    parts.append(cell_table(group))
    diagnosed = diagnostic_table(group, content.diagnostics)
    if diagnosed:
        told = [(name.replace("_", " "), meaning) for name, meaning in meanings.items()]
        parts += [diagnosed, f"<details><summary>What these are</summary>{facts('Diagnostics', told)}</details>"]
    protocol = [("protocol", group.cells[0].protocol), *group.protocol]
    parts.append(f"<details open><summary>Protocol</summary>{facts('What the cells share', protocol)}</details>")
    return f'<section id="{group.key}" class="group">{"".join(parts)}</section>'


def _notes(group: Group) -> list[str]:
    """Return what the charts leave out, with its number, and what their intervals don't take into account."""
    left_out = {
        "a judged sample": [cell for cell in group.cells if not cell.n],
        "a measured throughput": [cell for cell in group.cells if cell.n and cell.decode_tokens_per_s is None],
        "recorded bytes": [cell for cell in group.cells if cell.n and cell.resident_bytes is None],
    }
    told = ((what, len(cells)) for what, cells in left_out.items() if cells)
    notes = [f"Policies without {what}, missing from its charts: {count}." for what, count in told]
    if any(cell.problems < cell.n for cell in group.cells):
        notes.append("Problems were repeated and intervals take samples as independent: they are somewhat too narrow.")
    return notes


def _figure(group: Group, chart: Chart) -> str:
    key = f"{group.key}-{chart.name}"
    wide = ' class="wide"' if chart.name in WIDE else ""
    save = "".join(
        f'<button type="button" data-save="{kind}" data-of="{key}" hidden>Save as {kind.upper()}</button>'
        for kind in ("svg", "png")
    )
    return (
        f'<figure{wide}><div class="plot" id="{key}" role="img" aria-label="{text(chart.alt)}" '
        f'style="height:{chart.height}px"></div>'
        f'<script type="text/plain" id="{key}-data">{chart.packed()}</script>'
        f'<figcaption>{text(chart.note)} <span class="controls">{save}</span>'
        f"<details><summary>In words</summary><p>{text(chart.alt)}</p></details></figcaption></figure>"
    )


def _failures(content: Content, failures: Sequence[Failure]) -> str:
    if not failures:
        body = "<p>No sample failed.</p>" if not content.sweep.failed else "<p>No reasons are stored.</p>"
    else:
        columns = [Column("reason"), Column("samples", True), Column("cells", True), Column("for example")]
        rows = [
            [Value(each.reason), Value(f"{each.samples:,}"), Value(f"{each.cells:,}"), Value(each.example)]
            for each in failures
        ]
        body = table(f"Why {sum(each.samples for each in failures):,} samples failed", columns, rows)
    return f'<section id="failures"><h2>Failures</h2>{body}</section>'


def _environment(sweep: SweepInfo) -> str:
    pairs = list(flat(sweep.environment))
    body = facts("Where the sweep was started", pairs) if pairs else "<p>Nothing about it was stored.</p>"
    return f'<section id="environment"><h2>Environment</h2>{body}</section>'


def _specification(sweep: SweepInfo) -> str:
    return f'<section id="specification"><h2>Specification</h2>{block(_yaml(sweep.spec))}</section>'


def _yaml(spec: Mapping[str, Any]) -> str:
    return str(yaml.safe_dump(without_password(spec), sort_keys=False, allow_unicode=True, width=110))


def _again(sweep: SweepInfo) -> str:
    versions = sweep.environment.get("versions")
    version = versions.get("tiercache-eval") if isinstance(versions, Mapping) else None
    package = f"tiercache-eval=={version}" if isinstance(version, str) else "tiercache-eval"
    lines = [
        f"pip install {shlex.quote(package)}",
        "tiercache plan sweep.yaml      # the specification above, saved as sweep.yaml",
        "tiercache run sweep.yaml       # adds what is missing to the database",
        f"tiercache compare {shlex.quote(sweep.id)}",
        f"tiercache export {shlex.quote(sweep.id)} --html",
    ]
    words = "<p>Add <code>--db URL</code> to the last three for a database other than <code>tiercache.db</code>.</p>"
    return f'<section id="again"><h2>How to reproduce</h2>{block(chr(10).join(lines))}{words}</section>'
