"""Importance signals, one file each. A new one is a class here, its parameters in `tiercache.catalog`, and a test."""

from importlib import import_module

from tiercache.custom import FileSignal, PackageSignal, load_custom
from tiercache.errors import PolicyError
from tiercache.policy import Policy
from tiercache.scorers.base import Facts, Observed, ObservedPrefill, Part, Scorer, View, reduce_scope
from tiercache.scorers.guard import guard

__all__ = ["Facts", "Observed", "ObservedPrefill", "Part", "Scorer", "View", "make_scorer", "reduce_scope"]


def make_scorer(policy: Policy, facts: Facts) -> Scorer:
    """A fresh scorer for one run. A user's own gets its `options` as keyword arguments.

    Raises:
        PolicyError: a user's own class can't be loaded or is no Scorer.
    """
    signal = policy.scorer
    if isinstance(signal, FileSignal | PackageSignal):
        try:
            made = load_custom(signal)(signal, facts, **signal.options)
        except Exception as problem:
            raise PolicyError(f"scorer '{signal.scorer}' can't be loaded: {problem!r}.") from problem
        if not isinstance(made, Scorer):
            raise PolicyError(f"scorer '{signal.scorer}' is not a subclass of tiercache.scorers.Scorer.")
        made.window = policy.placement.window
        return guard(made, signal.scorer)
    module, _, name = signal.implementation.partition(":")
    made = getattr(import_module(module), name)(signal, facts)
    assert isinstance(made, Scorer)
    made.window = policy.placement.window
    return made
