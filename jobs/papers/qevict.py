"""2608.05326, QEvict: published numbers and claims, and a question asked of them."""

from jobs.papers.kinds import FULL, Claim, Contrast, Published, Resident, Speed
from jobs.papers.picks import Pick

MODEL = "meta-llama/Llama-3.1-8B-Instruct"
QEVICT = Pick("qevict", kind="bytes")
EVICT_ONLY = Pick("qevict", {"packed_bytes": 0.0}, kind="bytes")
LAYERS = Pick("layer_defensivekv", kind="bytes")
QUANTISED = (Pick("kivi", {"packed_bits": 2}), Pick("quantised", {"packed_bits": 4}))
SWEEPS = ("qevict_ruler", "qevict_longbench", "qevict_gsm8k")

PUBLISHED = (
    Published(
        "qevict-ruler",
        "qevict",
        "RULER at 32K, mean of its tasks",
        MODEL,
        "ruler",
        None,
        0.0,
        None,
        ((FULL, 90.0), (QEVICT, 87.6), (LAYERS, 86.4), (QUANTISED[0], 79.0)),
        ("qevict_ruler",),
        (
            "the budget of these numbers isn't known to us; the largest is taken",
            "full is stated as at most 2.4 above QEvict; 79.0 is the best quantised cache there, whichever it is",
            "RULER is in our own wording",
        ),
        tasks=True,
    ),
)

CLAIMS = (
    Claim(
        "qevict-layers",
        "qevict",
        "paper",
        "At equal bytes QEvict beats Layer-DefensiveKV.",
        "87.6 against 86.4 (RULER 32K, Llama-3.1-8B)",
        (Contrast(QEVICT, LAYERS, "higher", 0.01),),
        SWEEPS,
        "RULER at 32K with 500 problems of each of 13 tasks: 1.2 points need about 6,500 pairs",
    ),
    Claim(
        "qevict-quantised",
        "qevict",
        "paper",
        "It beats quantised caches.",
        "87.6 against 79.0",
        tuple(Contrast(QEVICT, other, "higher") for other in QUANTISED),
        SWEEPS,
        "RULER at 32K, 100 problems of each task, and quantised caches at the same bytes",
    ),
    Claim(
        "qevict-near-full",
        "qevict",
        "paper",
        "It stays within 2.4 points of the full cache.",
        "87.6 of at most 90.0",
        (Contrast(QEVICT, FULL, "loses at most", 0.024),),
        SWEEPS,
        "RULER at 32K, 500 problems of each task",
    ),
    Claim(
        "qevict-bytes",
        "qevict",
        "paper",
        "It holds no more bytes than its budget says, scales and zero points included.",
        "budgets of 5 to 20%; peak memory 29.54 to 20.78 GB, weights included",
        (Resident(QEVICT),),
        SWEEPS,
        "any run of the full files; up to 7 new tokens come on top of the budget between events",
    ),
    Claim(
        "qevict-speed",
        "qevict",
        "paper",
        "It decodes 9.8% faster than the full cache.",
        "throughput +9.8%, time per token -9.3%",
        (Speed(QEVICT, FULL, 1.098),),
        SWEEPS,
        "an idle GPU with SDPA and long contexts, `cluster: {alone: true}`",
    ),
    Claim(
        "audit-equal-tokens",
        "qevict",
        "ours",
        "Does it lose at equal tokens, where windows in 2 bits stand for windows in full?",
        "equal tokens are unequal bytes",
        (Contrast(Pick("qevict", kind="ratio"), Pick("qevict", {"packed_bytes": 0.0}, kind="ratio"), "lower"),),
        ("audit_baselines",),
        "7B on GSM8K, 500 problems",
    ),
    Claim(
        "audit-equal-bytes",
        "qevict",
        "ours",
        "At equal bytes, does the second tier beat keeping fewer windows, all in full?",
        "the only budget that is the same for both",
        (Contrast(QEVICT, EVICT_ONLY, "higher"),),
        (*SWEEPS, "audit_baselines"),
        "RULER at 32K and GSM8K, 500 problems",
    ),
)
