"""Makes the plain `lm_eval` command know the model `tiercache`.

The harness up to 0.4.13 looks for no models outside of its own package, and later ones do. But it imports torch, and
torch calls this (an entry point of `torch.backends`) in every process; only in the harness's does it do anything.
`TORCH_DEVICE_BACKEND_AUTOLOAD=0` turns it off.
"""

import logging
import sys


def register_in_harness() -> None:
    """Registers the model if this process is the harness. Whatever goes wrong, torch has to be imported."""
    if "lm_eval" not in sys.modules:
        return
    try:
        from jobs.lm_eval import register

        register()
    except Exception as problem:
        logging.getLogger(__name__).warning("the model tiercache can't be registered in lm_eval: %s", problem)
