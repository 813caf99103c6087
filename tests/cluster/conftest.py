"""One small Ray for a module."""

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    import ray

    # Logical GPUs let placement be tested on a machine without any.
    ray.init(address="local", num_cpus=4, num_gpus=2, include_dashboard=False, log_to_driver=False)
    yield ray
    ray.shutdown()
