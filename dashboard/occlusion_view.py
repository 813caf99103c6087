"""Scorers against occlusion labels: what `tiercache occlusion` stored of a sweep, or the command that does."""

from __future__ import annotations

import pandas as pd
import streamlit as st
from sqlalchemy import Engine

from dashboard import data
from dashboard.choices import choose
from dashboard.diagnostic_figures import scorer_means, scorers, scorers_in_words
from dashboard.downloads import downloads
from dashboard.show import show
from db.occlusion import OcclusionCheck, occlusion_checks


@st.cache_data(max_entries=32, show_spinner=False)
def _checks(key: tuple[str, int], _engine: Engine, sweep_id: str) -> list[OcclusionCheck]:
    return occlusion_checks(_engine, sweep_id)


def show_checks(source: data.Source, sweep_id: str) -> None:
    """Show the newest check of a sweep, or how to make one."""
    st.subheader("Scorers against occlusion labels")
    checks = _checks(source.key, source.engine, sweep_id)
    st.caption(
        "A label says how much log-probability the answer loses when a window of tokens is hidden from all that "
        "follow. A scorer that knows what the answer needs ranks tokens as the labels do."
    )
    if not checks:
        st.text("Nothing was measured in this sweep. It needs right answers of the full cache, and the model:")
        st.code(f"tiercache occlusion {sweep_id}", language="bash")
        return
    options = {f"{check.at.isoformat()} {check.fingerprint}": check for check in checks}
    key = next(iter(options))
    if len(options) > 1:
        key = choose("Check", list(options), "check", lambda each: _check_name(options[each]))
    check = options[key]
    show(scorers(check), alt=scorers_in_words(check), name="occlusion")
    table = pd.DataFrame(scorer_means(check), columns=["scorer", "Spearman", "low", "high", "chains"]).assign(
        missing=None
    )
    for name, why in check.refused.items():
        table.loc[len(table)] = [name, None, None, None, 0, why]
    st.dataframe(table, hide_index=True, placeholder="–", alt="Scorers with their rank correlations")
    downloads(table, "occlusion")
    st.text(
        f"{_check_name(check)}: {len(check.chains)} chains, windows of {check.window} tokens, stride {check.stride}; "
        f"the answer begins at {check.answer}. Hollow: the interval holds zero. Stored as an event of the sweep by:"
    )
    st.code(
        f"tiercache occlusion {sweep_id} --n {len(check.chains)} --window {check.window} --stride {check.stride}",
        language="bash",
    )


def _check_name(check: OcclusionCheck) -> str:
    return f"{check.model} on {check.benchmark}, {check.at:%Y-%m-%d %H:%M} UTC"
