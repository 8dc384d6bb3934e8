"""The package map in pyproject.toml tells what is on the disk."""

import sys
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]


def read_setuptools_table() -> dict[str, Any]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    table: dict[str, Any] = settings["tool"]["setuptools"]
    return table


def find_packages_on_disk() -> set[str]:
    """Name every folder of Python files below the two trees, as it ships."""
    core = {path.parent.relative_to(ROOT) for path in (ROOT / "gradwatch").rglob("*.py")}
    callbacks = {path.parent.relative_to(ROOT) for path in (ROOT / "callbacks").rglob("*.py")}
    return {".".join(path.parts) for path in core} | {
        ".".join(("gradwatch", *path.parts)) for path in callbacks
    }


def test_every_folder_of_code_ships_and_nothing_else() -> None:
    assert set(read_setuptools_table()["packages"]) == find_packages_on_disk()


def test_every_package_has_an_init_file() -> None:
    places = read_setuptools_table()["package-dir"]
    folders = [
        ROOT / places.get(name, name.replace(".", "/"))
        for name in read_setuptools_table()["packages"]
    ]
    assert [folder for folder in folders if not (folder / "__init__.py").is_file()] == []


def test_the_link_serves_the_callbacks_to_tools_that_read_the_tree() -> None:
    link = ROOT / "gradwatch" / "callbacks"
    assert link.samefile(ROOT / "callbacks")


def test_tests_are_no_package() -> None:
    assert list((ROOT / "tests").rglob("__init__.py")) == []
