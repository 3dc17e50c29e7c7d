"""What all tests share."""

import os

import jaxtyping
import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no test may reach the network


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """Tensors of a few numbers are not worth a second thread, and on a busy machine waiting for it takes most time."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture
def without_type_checks():
    """Let wrong types through to the code, as they come for users, whose calls nothing checks."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
