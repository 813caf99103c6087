"""Questions that we ask of 2605.09490: eviction ratios, positions, the prompt, the tiers, the baselines."""

from jobs.papers.hierarchy import LAST_STEP, tiers
from jobs.papers.kinds import Along, Claim, Contrast
from jobs.papers.picks import Pick

CLAIMS = (
    Claim(
        "audit-compounding",
        "hierarchy",
        "ours",
        "Does a ratio that compounds lose more than one of all candidates?",
        "the paper calls both 3%",
        (Contrast(tiers(0.5, 0.1), tiers(0.5, 0.1, compound=False), "lower"),),
        ("audit_eviction",),
        "7B on GSM8K, 500 problems",
    ),
    Claim(
        "audit-positions",
        "hierarchy",
        "ours",
        "Do drifted positions alone lose accuracy at the paper's 3%?",
        "the prototype passes no positions after eviction",
        (Contrast(tiers(0.5, 0.03, positions="drifted"), tiers(0.5, 0.03), "lower"),),
        ("audit_eviction",),
        "7B on GSM8K, 500 problems",
    ),
    Claim(
        "audit-prompt",
        "hierarchy",
        "ours",
        "Does H2O need the prompt pinned, at equal bytes?",
        "the hierarchy pins it, the baselines do not",
        (
            Contrast(
                Pick("h2o", {"pin_prompt": True}),
                Pick("h2o"),
                "higher",
            ),
        ),
        ("audit_eviction",),
        "7B on GSM8K, 500 problems",
    ),
    Claim(
        "audit-tiers",
        "hierarchy",
        "ours",
        "Is accuracy the same at 10 and 90% HBM when T1 really is on the host?",
        "the paper's grid is 30 to 70%, simulated",
        (
            Along(
                tuple(
                    ((hbm, evict), tiers(hbm, evict, t1_read="stream")) for hbm in (0.1, 0.9) for evict in (0.0, 0.05)
                ),
                "hbm",
                "same",
            ),
        ),
        ("audit_tiers",),
        "7B on GSM8K, 500 problems",
    ),
    Claim(
        "audit-key-axis",
        "hierarchy",
        "ours",
        "Do 8-bit keys do better with a range for each channel than for each token?",
        "T2 takes accuracy from 58 to 20",
        (
            Contrast(
                tiers(0.5, 0.05, packed=0.5, window=8, key_axis="channel"),
                tiers(0.5, 0.05, packed=0.5, window=8, key_axis="token"),
                "higher",
            ),
        ),
        ("audit_tiers",),
        "a Qwen2.5 model, whose key biases make channels loud; 500 problems",
    ),
    Claim(
        "audit-h2o",
        "hierarchy",
        "ours",
        "Is the H2O of 2306.14048 better than the last-step one?",
        "the paper's H2O row: 2 to 30",
        (Contrast(Pick("h2o"), Pick("h2o", LAST_STEP), "higher"),),
        ("audit_baselines",),
        "7B on GSM8K, 500 problems",
    ),
    Claim(
        "audit-signal",
        "hierarchy",
        "ours",
        "Inside one hierarchy, does ranking by attention beat chance?",
        "attention 58, redundancy 42 at 5%",
        (Contrast(tiers(0.5, 0.05), tiers(0.5, 0.05, scorer="random"), "higher"),),
        ("audit_scorers",),
        "7B on GSM8K, 500 problems",
    ),
)
