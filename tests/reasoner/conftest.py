"""Settings for the tests of the reasoner."""

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """The model is so small that a second thread costs more than it brings."""
    torch.set_num_threads(1)
