"""`python -m jobs.lm_eval`: the harness's command line, knowing the model `tiercache`."""

import sys

from jobs.lm_eval import register
from tiercache.errors import TierCacheError

EXIT_BAD_INPUT = 2


def main() -> None:
    """Same arguments and output as `lm_eval`; what this project refuses costs one message and exit code 2."""
    try:
        register()
        from lm_eval.__main__ import cli_evaluate
    except ImportError as problem:
        sys.exit(f"error: lm-eval can't be imported ({problem}); pip install 'tiercache-eval[lm-eval]'")
    try:
        cli_evaluate()
    except TierCacheError as problem:
        print(f"error: {problem}", file=sys.stderr)
        sys.exit(EXIT_BAD_INPUT)


if __name__ == "__main__":
    main()
