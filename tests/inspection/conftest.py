"""What the tests of inspection share."""

import jaxtyping
import pytest


@pytest.fixture
def without_type_checks():
    """Let wrong types through to the code, as they come for users, whose calls nothing checks."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
