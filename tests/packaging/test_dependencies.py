"""What the code imports is declared, and what is declared is pinned for the checks."""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
FILES = sorted([*(ROOT / "gradwatch").rglob("*.py"), *(ROOT / "callbacks").rglob("*.py")])
SHIPS_AS = {"PIL": "pillow"}

# Used where they are found: Lightning's other name, what a CUDA build of torch brings along, and
# another provider of fused layers.
NEVER_REQUIRED = {"pytorch_lightning", "triton", "typing_extensions", "jinja2", "liger_kernel"}


def read_project_table() -> dict[str, Any]:
    table: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return table


def read_name(requirement: str) -> str:
    return re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0].lower()


def list_declared(*extras: str) -> set[str]:
    """Name what one of the extras requires, or without an extra what everybody gets."""
    table = read_project_table()
    groups = [table["optional-dependencies"][name] for name in extras] or [table["dependencies"]]
    return {read_name(requirement) for group in groups for requirement in group}


def find_imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_file_imports_only_what_is_declared(path: Path) -> None:
    foreign = set(find_imports(path)) - sys.stdlib_module_names - NEVER_REQUIRED - {"gradwatch"}
    declared = list_declared() | list_declared("cli", "workspace")
    shipped = {SHIPS_AS.get(name, name).replace("_", "-") for name in foreign}
    assert shipped - declared == set()


def test_every_requirement_has_a_lower_bound_and_no_pin() -> None:
    requirements = read_project_table()["dependencies"]
    assert [line for line in requirements if ">=" not in line or "==" in line] == []


def test_the_constraints_pin_everything_that_is_declared() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {read_name(line) for line in lines if "==" in line}
    declared = list_declared() | list_declared(*read_project_table()["optional-dependencies"])
    assert declared - pinned == set()
