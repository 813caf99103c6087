"""2605.09490, a four-tier hierarchy: published numbers, claims, and questions asked of them.

Numbers of tables that say n = 50 are from the public draft; the abstract's are n = 200.
"""

from collections.abc import Iterable

from jobs.papers.kinds import FULL, Along, Claim, Contrast, Published, Resident, Speed
from jobs.papers.picks import Pick

MODEL = "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B"
HBM, EVICT = (0.3, 0.5, 0.7), (0.03, 0.05, 0.1)
SERIES = (0.03, 0.05, 0.07, 0.1, 0.15, 0.2)
SHARES = (0.9, 0.8, 0.7, 0.5, 0.3)
GPU = "GSM8K with 1,319 problems and MATH-500 on R1-Distill 7B, 14B and 32B: one 80 GB GPU a model"


def tiers(hbm: float, evict: float, **knobs: object) -> Pick:
    return Pick("hierarchy", {"hbm": hbm, "evict": evict, **knobs})


def kept(share: float) -> Pick:
    """Eviction alone, by attention over all layers and heads."""
    return Pick("h2o", {"scope": "token", "pin_prompt": True, "budget": share})


def rows(picks: Iterable[Pick], values: Iterable[float]) -> tuple[tuple[Pick, float], ...]:
    return tuple(zip(picks, values, strict=True))


GRID = tuple(((hbm, evict), tiers(hbm, evict)) for hbm in HBM for evict in EVICT)
LAST_STEP = {"scorer": "tova", "scope": "token", "sinks": 4}

PUBLISHED = (
    Published(
        "hierarchy-ratios",
        "hierarchy",
        "Eviction ratios and baselines on GSM8K",
        MODEL,
        "gsm8k",
        50,
        0.0,
        2048,
        (
            (FULL, 66.0),
            *rows((tiers(0.5, evict) for evict in SERIES), (60.0, 58.0, 48.0, 34.0, 16.0, 10.0)),
            *rows((tiers(0.3, evict) for evict in EVICT), (60.0, 58.0, 34.0)),
            *rows((tiers(0.7, evict) for evict in EVICT), (60.0, 58.0, 34.0)),
            *rows((tiers(0.5, evict, packed=0.5) for evict in (0.05, 0.1)), (20.0, 10.0)),
            *rows(map(kept, SHARES), (56.0, 42.0, 22.0, 0.0, 0.0)),
            *rows((Pick("random", {"scope": "token", "budget": s}) for s in SHARES), (46.0, 38.0, 16.0, 0.0, 0.0)),
            *rows((Pick("h2o", LAST_STEP, level) for level in range(-5, 0)), (2.0, 2.0, 10.0, 8.0, 30.0)),
        ),
        ("hierarchy_grid", "hierarchy_cliff"),
        (
            "the paper's prototype takes positions from what is left and ranks nothing on the host again",
            "its accuracies do not use the HBM ratio: each row of one eviction ratio is the same number",
            "5% is printed as 58 in one place and 54 in another",
        ),
    ),
    Published(
        "hierarchy-system",
        "hierarchy",
        "The system run on GSM8K",
        MODEL,
        "gsm8k",
        50,
        0.0,
        2048,
        (
            (FULL, 76.0),
            (tiers(0.5, 0.1, t1_read="stream"), 78.0),
            (tiers(0.3, 0.1, t1_read="stream"), 72.0),
            (tiers(0.5, 0.05, t1_read="stream"), 68.0),
            (kept(0.5), 8.0),
        ),
        ("hierarchy_system",),
        ("weights in int8 there", "tokens on the host are neither ranked again nor evicted there"),
    ),
)

CLAIMS = (
    Claim(
        "hierarchy-hbm",
        "hierarchy",
        "paper",
        "At a fixed eviction ratio accuracy does not depend on the HBM ratio.",
        "p > 0.3 for HBM 30, 50, 70% at each eviction ratio",
        (Along(GRID, "hbm", "same"),),
        ("hierarchy_grid",),
        GPU,
    ),
    Claim(
        "hierarchy-evict",
        "hierarchy",
        "paper",
        "At a fixed HBM ratio accuracy falls with the eviction ratio.",
        "up to 18 points between 3 and 10%",
        (Along(GRID, "evict", "lower"),),
        ("hierarchy_grid",),
        GPU,
    ),
    Claim(
        "hierarchy-zero-error",
        "hierarchy",
        "paper",
        "Without eviction nothing is lost, whatever the HBM ratio.",
        "zero approximation error",
        tuple(Contrast(tiers(hbm, 0), FULL, "same", 0.02) for hbm in HBM),
        ("hierarchy_grid",),
        "about 400 problems of any benchmark at one model; exactness itself is checked token by token in the tests",
    ),
    Claim(
        "hierarchy-3-percent",
        "hierarchy",
        "paper",
        "With 3% eviction the hierarchy keeps at least 91% of the full cache's accuracy.",
        "91% of GSM8K, 71% of MATH-500 (n = 200)",
        (Contrast(tiers(0.5, 0.03), FULL, "loses at most", 0.09, relative=True),),
        ("hierarchy_grid", "hierarchy_cliff"),
        GPU,
    ),
    Claim(
        "hierarchy-half-hbm",
        "hierarchy",
        "paper",
        "It matches the full cache with half of it in HBM.",
        "14B: 90 against 86, HBM 50%",
        (Contrast(tiers(0.5, 0.03), FULL, "loses at most", 0.02), Resident(tiers(0.5, 0.03), 0.5)),
        ("hierarchy_grid",),
        "14B, 500 problems: n = 50 can't tell 4 points from chance. The prompt and the newest 128 are always in HBM",
    ),
    Claim(
        "hierarchy-cliff",
        "hierarchy",
        "paper",
        "Evicting half of the cache loses nearly everything.",
        "50% eviction: 0 to 2.5",
        (Contrast(kept(0.5), FULL, "loses at least", 0.5, relative=True),),
        ("hierarchy_cliff",),
        GPU,
    ),
    Claim(
        "hierarchy-h2o",
        "hierarchy",
        "paper",
        "It beats H2O (the paper's, by the last step's attention) by far.",
        "58 to 65 against 2 to 30",
        (Contrast(tiers(0.5, 0.05), Pick("h2o", LAST_STEP), "higher"),),
        ("hierarchy_cliff",),
        "GSM8K with 200 problems, but at equal device bytes: the host holds what the hierarchy moved away",
    ),
    Claim(
        "hierarchy-rkv",
        "hierarchy",
        "paper",
        "It beats R-KV at comparable budgets.",
        "56 to 62 at 3% against 0 to 32",
        (Contrast(tiers(0.5, 0.03), Pick("rkv"), "higher"),),
        ("hierarchy_cliff",),
        "R-KV as published: temperature 0.6, top-p 0.95, 16,384 tokens, true positions",
    ),
    Claim(
        "hierarchy-t2",
        "hierarchy",
        "paper",
        "Eight bits in T2 cost much accuracy.",
        "58 to 20 at 5% eviction",
        (Contrast(tiers(0.5, 0.05, packed=0.5), tiers(0.5, 0.05), "lower", 0.1),),
        ("hierarchy_cliff",),
        "GSM8K with 200 problems: 38 points show at once, if they are there",
    ),
    Claim(
        "hierarchy-speed",
        "hierarchy",
        "paper",
        "Moving data costs 14% of the decode rate.",
        "21.8 to 18.7 tokens/s",
        (Speed(tiers(0.5, 0.1, t1_read="stream"), FULL, 0.858),),
        ("hierarchy_system",),
        "an idle GPU node with `cluster: {alone: true}`, several runs",
    ),
)
