"""2606.26472, EpiKV: published numbers and claims, and a question asked of them."""

from jobs.papers.kinds import FULL, Claim, Contrast, Published, Speed
from jobs.papers.picks import Pick

MODEL = "deepseek-ai/DeepSeek-R1-Distill-Llama-8B"
EPIKV = {"signal": "zscore"}
THINKV = {"pack_thoughts": False}
H2O = {"sinks": 4}


def column(level: int, values: dict[str, float]) -> tuple[tuple[Pick, float], ...]:
    """The policies of one budget, `level` counted from the largest."""
    picks = {
        "zscore": Pick("epikv", EPIKV, level),
        "variance": Pick("epikv", {"signal": "variance"}, level),
        "band": Pick("epikv", {"signal": "band"}, level),
        **{
            signal: Pick("epikv_kv", {"signal": signal}, level)
            for signal in ("lag-kv", "lag-kv-key", "kv-key", "kv-val")
        },
        "thinkv": Pick("thinkv", THINKV, level),
        "h2o": Pick("h2o", H2O, level),
        "raas": Pick("raas", {}, level),
    }
    return tuple((picks[name], value) for name, value in values.items())


_SIGNALS = ("zscore", "variance", "band", "kv-key", "lag-kv-key", "kv-val", "lag-kv", "thinkv", "h2o", "raas")
_MATH: dict[int, tuple[float, ...]] = {
    -4: (0, 1, 1, 1, 1, 1, 1, 6, 1, 2),
    -3: (27, 28, 25, 24, 25, 24, 24, 32, 5, 21),
    -2: (49, 50, 57, 57, 57, 56, 57, 58, 49, 60),
    -1: (72, 71, 70, 70, 70, 70, 70, 71, 67, 70),
}
_AIME_SIGNALS = ("zscore", "lag-kv", "thinkv", "h2o", "raas")
_AIME: dict[int, tuple[float, ...]] = {
    -5: (0, 0, 0, 0, 0),
    -4: (0, 0, 0, 0, 0),
    -3: (0, 0, 6.7, 0, 0),
    -2: (16.7, 20.0, 20.0, 20.0, 16.7),
    -1: (33.3, 36.7, 30.0, 33.3, 30.0),
}


def _table(names: tuple[str, ...], columns: dict[int, tuple[float, ...]]) -> tuple[tuple[Pick, float], ...]:
    rows: list[tuple[Pick, float]] = []
    for level, values in sorted(columns.items(), reverse=True):
        rows += column(level, dict(zip(names, map(float, values), strict=True)))
    return tuple(rows)


PUBLISHED = (
    Published(
        "epikv-math500",
        "epikv",
        "MATH-500, budgets of 512 to 4,096 tokens",
        MODEL,
        "math500",
        100,
        0.0,
        None,
        ((FULL, 75.0), *_table(_SIGNALS, _MATH)),
        ("epikv_math500",),
        (
            "answers compared as text there, mathematically here",
            "kv-key, lag-kv-key and kv-val, lag-kv share a row there",
        ),
    ),
    Published(
        "epikv-aime",
        "epikv",
        "AIME-2024, budgets of 512 to 8,192 tokens",
        MODEL,
        "aime2024",
        30,
        0.0,
        None,
        (
            (FULL, 43.3),
            *_table(_AIME_SIGNALS, _AIME),
            *column(-1, {"kv-key": 23.3}),
            *column(-2, {"kv-key": 13.3}),
        ),
        ("epikv_aime",),
        ("one problem is 3.3 points there",),
    ),
)

CLAIMS = (
    Claim(
        "epikv-matches",
        "epikv",
        "paper",
        "At its largest budget on MATH-500 EpiKV matches the best attention-based policy, ThinKV, and H2O.",
        "72 against 71 and 67 (n = 100)",
        tuple(
            Contrast(Pick("epikv", EPIKV), other, "loses at most", 0.05)
            for other in (Pick("thinkv", THINKV), Pick("h2o", H2O))
        ),
        ("epikv_math500",),
        "R1-Distill-Llama-8B, all 500 problems, several samples each, one 80 GB GPU",
    ),
    Claim(
        "epikv-near-full",
        "epikv",
        "paper",
        "At its largest budget EpiKV loses little of the full cache.",
        "72 against 75 at 4,096",
        (Contrast(Pick("epikv", EPIKV), FULL, "loses at most", 0.05),),
        ("epikv_math500",),
        "R1-Distill-Llama-8B, all 500 problems, several samples each",
    ),
    Claim(
        "epikv-lag",
        "epikv",
        "paper",
        "On AIME the lag-normalised variant beats the best attention-based policy.",
        "36.7 against 33.3 (n = 30, one problem)",
        tuple(
            Contrast(Pick("epikv_kv", {"signal": "lag-kv"}), other, "higher")
            for other in (Pick("h2o", H2O), Pick("thinkv", THINKV), Pick("raas"))
        ),
        ("epikv_aime",),
        "AIME-2024 and 2025, 64 samples of each problem: 3.3 points is one problem",
    ),
    Claim(
        "epikv-speed",
        "epikv",
        "paper",
        "It is up to 2.8 times as fast a problem as RaaS, 1.6 times as ThinKV.",
        "440.5 s against 1,238.7 and 721.0 (lag-kv, AIME at 8,192)",
        (
            Speed(Pick("epikv_kv", {"signal": "lag-kv"}), Pick("raas"), 2.81),
            Speed(Pick("epikv_kv", {"signal": "lag-kv"}), Pick("thinkv", THINKV), 1.64),
        ),
        ("epikv_aime",),
        "an idle GPU, `cluster: {alone: true}`; the paper counts seconds a problem, so chain lengths too",
    ),
    Claim(
        "audit-bands",
        "epikv",
        "ours",
        "Does the sign of EpiKV's two layers matter: is it better than with them exchanged?",
        "layer 10 correlates with importance by +0.11, 21 by -0.21",
        (Contrast(Pick("epikv", EPIKV), Pick("epikv", {"band_a": "2", "band_b": "1"}), "higher"),),
        ("audit_scorers",),
        "R1-Distill-Llama-8B, 500 problems, at a budget where accuracy is between the floor and the full cache's",
    ),
)
