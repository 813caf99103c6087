"""What of a policy contradicts itself, and what was given although it can't have any effect."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tiercache.catalog import SIGNALS
from tiercache.errors import PolicyError

if TYPE_CHECKING:
    from tiercache.policy import Policy

_QUANTISED = ("packed", "packed_bytes", "pack_thoughts")
# Each knob says something about what one of the others brings about.
NEEDS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("packed_bits", "key_axis", "group", "rope_pairs", "grids", "ledger"), _QUANTISED),
    "transition_bits": ("pack_thoughts",),
    "t1_read": ("hbm", "packed", "packed_bytes"),
    "compound": ("evict",),
    "chunk_keep": ("chunk",),
    "ladder": ("segment",),
    "recent_cap": ("recent_share",),
    "dense_layers": ("pages",),
    "share_pages": ("pages",),
}
_RECENT = ("recent", "recent_share", "recent_cap", "generated_sinks", "every")
# Placements that have times and protections of their own.
WITHOUT: dict[str, tuple[tuple[str, ...], str]] = {
    "segment": (_RECENT, "thoughts shrink as they end; the one that goes on is protected"),
    "chunk": (_RECENT, "a chunk is compressed once the next one is complete"),
    "pages": ((*_RECENT, "scorer", "scope", "sinks", "pin_prompt"), "pages are read and nothing is ever evicted"),
}


def check_effects(given: Mapping[str, Any], knobs: Mapping[str, Any], where: str) -> None:
    """Refuses a given knob that does nothing: a table would show it as if it did.

    Args:
        given: as the user wrote them; knobs: with the preset's own.
    """
    for knob in given:
        if knob in NEEDS and not any(knobs.get(other) is not None for other in NEEDS[knob]):
            others = ", ".join(NEEDS[knob])
            raise PolicyError(f"{where}.{knob}: has no effect here; give one of {others} too, or leave it out.")
    for placement, (without, reason) in WITHOUT.items():
        if knobs.get(placement) is not None:
            for knob in without:
                if knob in given:
                    raise PolicyError(f"{where}.{knob}: has no effect with {placement}: {reason}. Leave it out.")


def check_together(policy: "Policy", where: str) -> None:
    """Contradictions between parts."""
    placement, positions = policy.placement, policy.storage.positions
    if positions in ("cache", "rerotated") and placement.tiered:
        raise PolicyError(
            f"{where}.positions: '{positions}' renumbers tokens in device memory and needs hbm: 1 without quantised "
            "tokens; allowed with tiers: true, drifted."
        )
    if positions in ("cache", "rerotated") and placement.ragged:
        raise PolicyError(f"{where}.positions: '{positions}' needs heads that keep alike; allowed: true, drifted.")
    if policy.scorer.true_positions and positions != "true":
        raise PolicyError(f"{where}.positions: '{policy.scorer.scorer}' works with true positions only.")
    if policy.storage.key_axis == "channel" and placement.window == 1:
        raise PolicyError(f"{where}.key_axis: 'channel' takes a channel's range over a window; give window: 2 or more.")
    if placement.segment is not None and not policy.scorer.thoughts:
        known = ", ".join(name for name, signal in SIGNALS.items() if signal.thoughts)
        raise PolicyError(
            f"{where}.segment: '{policy.scorer.scorer}' can't tell thoughts apart; "
            f"allowed scorers: {known}, or your own."
        )
    if placement.pack_thoughts and policy.storage.ledger:
        raise PolicyError(f"{where}.ledger: a thought that is quantised never comes back; leave it out.")
    if policy.reading.pages is not None and positions != "true":
        raise PolicyError(f"{where}.positions: pages are bounds of keys at true positions; allowed: true.")
    if policy.reading.pages is not None and policy.acts:
        raise PolicyError(
            f"{where}.pages: pages are read where nothing is evicted or moved; leave budget, evict and hbm."
        )
    if placement.evict > 0 and policy.schedule.every == 0:
        raise PolicyError(f"{where}.evict: needs events; give every: 1 or more.")
