"""A checkpoint that the tests of the flags name."""

from pathlib import Path

import pytest

from tests.tiny import save_tiny_model


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model's folder; read only."""
    return save_tiny_model(tmp_path_factory.mktemp("arguments") / "model")
