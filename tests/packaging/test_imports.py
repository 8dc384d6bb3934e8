"""Importing the core costs torch and nothing more; what is optional stays optional."""

import subprocess
import sys
from functools import cache

import pytest


@cache
def list_modules_after(statement: str) -> set[str]:
    program = f"{statement}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


@pytest.mark.parametrize("package", ["lightning", "pytorch_lightning", "wandb", "matplotlib"])
def test_the_core_comes_without(package: str) -> None:
    assert package not in list_modules_after("import gradwatch")


def test_the_callbacks_come_without_wandb_unless_lightning_brings_it() -> None:
    bare = list_modules_after("import lightning.pytorch")
    added = list_modules_after("import gradwatch.callbacks") - bare
    assert "wandb" not in added
