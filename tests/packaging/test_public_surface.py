"""The public names are a promise: changing them means changing public_names.txt by hand."""

import importlib
from pathlib import Path

import pytest

PROMISED = (Path(__file__).parent / "public_names.txt").read_text().split()
PACKAGES = ("gradwatch", "gradwatch.callbacks")


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_offers_exactly_the_promised_names(package: str) -> None:
    promised = {name.rpartition(".")[2] for name in PROMISED if name.rpartition(".")[0] == package}
    assert set(importlib.import_module(package).__all__) == promised


def test_every_promise_belongs_to_a_public_package() -> None:
    assert {name.rpartition(".")[0] for name in PROMISED} <= set(PACKAGES)


def test_the_promises_are_sorted_and_made_once() -> None:
    assert sorted(set(PROMISED)) == PROMISED


@pytest.mark.parametrize("name", PROMISED)
def test_a_promised_name_exists_and_is_documented(name: str) -> None:
    package, _, attribute = name.rpartition(".")
    value = getattr(importlib.import_module(package), attribute)
    assert isinstance(value, str) or (value.__doc__ or "").strip()
