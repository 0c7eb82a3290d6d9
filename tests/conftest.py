"""Fixtures for several test files."""

import os
from pathlib import Path

import pytest

from fedlab_support import styles
from fedlab_support.engines.local import one_intra_op_thread
from tests.styler import TinyStyles


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder with the real prepared data; skips where there is none."""
    beside = Path(__file__).parents[2] / "shared" / "data"
    folder = Path(os.environ.get("FEDLAB_DATA") or beside)
    if not folder.is_dir():
        pytest.skip("no real data here: set FEDLAB_DATA to the folder that holds it")
    return folder


@pytest.fixture(scope="module")
def one_thread():
    """Tiny tensors are slower on several threads."""
    with one_intra_op_thread():
        yield


@pytest.fixture
def tiny_styles(monkeypatch) -> list[str]:
    """Methods get a tiny style network; the names that were asked for."""
    asked = []

    def style_network(source: str = "small") -> TinyStyles:
        asked.append(source)
        return TinyStyles()

    monkeypatch.setattr(styles, "style_network", style_network)
    return asked
