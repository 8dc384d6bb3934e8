"""Ceilings are measured once for all tests, in a folder of their own."""

from pathlib import Path

import pytest

from gradwatch.roofline import Ceilings, measure_ceilings


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    shared: Path = tmp_path_factory.getbasetemp() / "ceilings"
    monkeypatch.setenv("XDG_CACHE_HOME", str(shared))


@pytest.fixture
def ceilings() -> Ceilings:
    return measure_ceilings()
