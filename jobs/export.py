"""A sweep's results as CSV, JSON or a Markdown table, for notebooks, papers and other programs."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any, Literal

from db.queries import CellSummary, DiagnosticSummary, FailedSample, SweepInfo
from jobs.failures import reasons
from jobs.report import DIAGNOSTICS, accuracy_text, bytes_text, diagnostic_texts, share_text
from tiercache.diagnostics.values import MEANING
from tiercache.errors import SpecError
from tiercache.strict import nearest

Format = Literal["csv", "json", "md", "lm-eval"]


def pick_sweep(sweeps: Sequence[SweepInfo], wanted: str) -> SweepInfo:
    """The sweep by id, by name (the newest of that name) or `latest`.

    Raises:
        SpecError: there is none; the nearest right name is given.
    """
    if not sweeps:
        raise SpecError("there are no sweeps in this database yet; start one with: tiercache run sweeps/demo.yaml")
    if wanted == "latest":
        return sweeps[0]
    for sweep in sweeps:  # the newest first
        if wanted in (sweep.id, sweep.name):
            return sweep
    names = list(dict.fromkeys(name for sweep in sweeps for name in (sweep.name, sweep.id)))
    known = ", ".join(dict.fromkeys(sweep.name for sweep in sweeps))
    raise SpecError(f"no sweep '{wanted}' in this database.{nearest(wanted, names)} It has: {known}. Or say 'latest'.")


def export(
    sweep: SweepInfo,
    summaries: Sequence[CellSummary],
    form: Format,
    diagnostics: Mapping[str, DiagnosticSummary] | None = None,
    failed: Sequence[FailedSample] = (),
) -> str:
    """The summaries as text in that format; bytes and rates as plain numbers, what wasn't measured empty or null.

    `diagnostics` by fingerprint stand beside the other numbers of a cell, where there are any; `failures` are the
    reasons of its failed samples.
    """
    if form == "lm-eval":
        from jobs.lm_eval.export import to_lm_eval

        return json.dumps(to_lm_eval(summaries, sweep), indent=2, ensure_ascii=False) + "\n"
    found = diagnostics or {}
    if form == "md":
        return _markdown(summaries) + _failed_markdown(failed) + _diagnostic_markdown(summaries, found)
    rows = [_row(summary, found) | {"failures": _failures(summary, failed)} for summary in summaries]
    if form == "json":
        about = {"sweep": sweep.id, "name": sweep.name, "state": sweep.live_state(), "spec": sweep.spec}
        meaning = {"diagnostics": MEANING} if found else {}
        return json.dumps({**about, **meaning, "cells": rows}, indent=2, ensure_ascii=False, default=str) + "\n"
    out = io.StringIO()
    if rows:
        writer = csv.DictWriter(out, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({key: _flat(value) for key, value in row.items()})
    return out.getvalue()


def _failures(summary: CellSummary, failed: Sequence[FailedSample]) -> list[dict[str, Any]]:
    own = reasons([sample for sample in failed if sample.fingerprint == summary.fingerprint])
    return [{"reason": reason.text, "samples": reason.samples} for reason in own]


def _flat(value: object) -> object:
    """A CSV field: names with semicolons between them; reasons, which may hold some, with bars."""
    if isinstance(value, list):
        return " | ".join(f"{each['samples']} x {each['reason']}" for each in value)
    return ";".join(value) if isinstance(value, tuple) else value


def _row(summary: CellSummary, found: Mapping[str, DiagnosticSummary]) -> dict[str, Any]:
    row = {**asdict(summary), "resident_bytes": summary.resident_bytes, "resident_share": summary.resident_share}
    if found:
        own = found.get(summary.fingerprint)
        row |= asdict(own) if own else {field.name: None for field in fields(DiagnosticSummary)}
    return row


def _failed_markdown(failed: Sequence[FailedSample]) -> str:
    found = reasons(failed)
    lines = [f"* {each.samples} failed in {each.cells} of the cells: {each.text}" for each in found]
    return "\n".join(["", *lines, ""]) if found else ""


def _diagnostic_markdown(summaries: Sequence[CellSummary], found: Mapping[str, DiagnosticSummary]) -> str:
    if not found:
        return ""
    names = [name.strip() for name in DIAGNOSTICS.values()]
    lines = [
        "",
        f"| model | benchmark | protocol | policy | {' | '.join(names)} | diverge | n |",
        "|---|---|---|---|" + "---:|" * (len(names) + 2),
    ]
    for row in summaries:
        if row.fingerprint in found:
            values = (row.model, row.benchmark, row.protocol[:8], row.policy, *diagnostic_texts(found[row.fingerprint]))
            lines.append("| " + " | ".join(value.replace("|", "\\|") for value in values) + " |")
    lines.append("")
    lines += [f"* {name}: {MEANING[key]}" for key, name in zip(DIAGNOSTICS, names, strict=True)]
    return "\n".join(lines) + "\n"


def _markdown(summaries: Sequence[CellSummary]) -> str:
    lines = [
        "| model | benchmark | protocol | policy | accuracy % [95% CI] | n | no answer | truncated | failed "
        "| decode tok/s | device KV per sequence | of full | host KV | evicted KV |",
        "|---|---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in summaries:
        values = (
            row.model,
            row.benchmark,
            row.protocol[:8],
            row.policy,
            accuracy_text(row),
            row.n,
            row.no_answer,
            row.truncated,
            row.failed,
            "–" if row.decode_tokens_per_s is None else f"{row.decode_tokens_per_s:,.0f}",
            bytes_text(row.resident_bytes),
            share_text(row),
            bytes_text(row.ddr_bytes),
            bytes_text(row.evicted_bytes),
        )
        lines.append("| " + " | ".join(str(value).replace("|", "\\|") for value in values) + " |")
    return "\n".join(lines) + "\n"
