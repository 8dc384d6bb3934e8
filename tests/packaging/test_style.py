"""Short functions, short files, nothing left for later: measured over the code that ships."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from statistics import median, quantiles

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted([*(ROOT / "gradwatch").rglob("*.py"), *(ROOT / "callbacks").rglob("*.py")])
LONGEST_FILE = 300
# One operation, forward and backward, stays in one file.
LONGEST_KERNEL_FILE = 320
LONGEST_BODY = 50
LONGEST_KERNEL_BODY = 80
LATER = re.compile(r"#.*\b(TODO|FIXME|XXX|HACK)\b")


def read_name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def find_functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node


def count_body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Count from the first statement after the docstring to the last line."""
    body = function.body
    if ast.get_docstring(function, clean=False) is not None:
        body = body[1:]
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def measure_bodies(path: Path) -> dict[str, int]:
    return {
        f"{read_name(path)}:{function.lineno} {function.name}": count_body_lines(function)
        for function in find_functions(path)
    }


def test_a_docstring_does_not_count_as_body() -> None:
    tree = ast.parse('def f():\n    """One.\n\n    Two.\n    """\n    x = 1\n    return x\n')
    function = tree.body[0]
    assert isinstance(function, ast.FunctionDef)
    assert count_body_lines(function) == 2


@pytest.mark.parametrize("path", FILES, ids=read_name)
def test_a_file_is_short(path: Path) -> None:
    longest = LONGEST_KERNEL_FILE if "kernels" in path.parts else LONGEST_FILE
    assert len(path.read_text().splitlines()) <= longest


@pytest.mark.parametrize("path", FILES, ids=read_name)
def test_no_function_is_long(path: Path) -> None:
    kernel = "kernels" in path.parts
    longest = LONGEST_KERNEL_BODY if kernel else LONGEST_BODY
    assert {name: lines for name, lines in measure_bodies(path).items() if lines > longest} == {}


@pytest.mark.parametrize("path", FILES, ids=read_name)
def test_nothing_is_left_for_later(path: Path) -> None:
    assert LATER.findall(path.read_text()) == []


def test_most_functions_are_very_short() -> None:
    bodies = [lines for path in FILES for lines in measure_bodies(path).values()]
    assert median(bodies) <= 8
    assert quantiles(bodies, n=10)[-1] <= 25
