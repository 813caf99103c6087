"""The engine as a model of EleutherAI's lm-evaluation-harness, and our results in the layout of its results files.

`python -m jobs.lm_eval` is the harness's own command with the model `tiercache` in it. The harness is an extra:
`pip install 'tiercache-eval[lm-eval]'`. Importing this package imports neither it nor torch.
"""

NAME = "tiercache"
CLASS = "jobs.lm_eval.model:TierCacheLM"


def register() -> None:
    """Makes `model="tiercache"` known to the harness of this process; the class is imported when it is first used.

    A harness later than 0.4.13 finds it by itself, through the entry point `lm_eval.models`.

    Raises:
        ImportError: lm-eval isn't installed.
    """
    import lm_eval.models  # noqa: F401  its own models first: the harness adds them only to an empty registry
    from lm_eval.api.registry import model_registry

    if NAME not in model_registry:
        model_registry.register(NAME, target=CLASS)
