"""Run the field cases and print, for each, what is expected and what gradwatch says.

    python tests/benchmarks/cases.py            # prints the table
    python tests/benchmarks/cases.py --write    # and writes it to docs/cases.md

The table holds what the tests under tests/cases noted while they ran. It is not written where
one of them fails or a case has no note.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "cases.md"
HEAD = """# Cases from the field

Faults behind public bug reports, rebuilt small. Each runs under a Trainer with `GradWatch()` and,
where it needs nothing of Lightning, in a plain loop under `gradwatch.watch`, most in several
variants; the tests are in `tests/cases`. This page is what they noted, written by
`python tests/benchmarks/cases.py --write`.

| case | kind of fault | expected | gradwatch says (one variant) | runs |
|---|---|---|---|---|
"""
KINDS = {
    "a01": "in-place activation after a layer",
    "a02": "in-place addition onto a layer's output",
    "a03": "output wrapped in a dict, list, dataclass or named tuple",
    "a05": "one module called many times",
    "a07": "activation checkpointing",
    "a09": "frozen, integer and unused parameters",
    "a10": "sparse gradient",
    "a13": "projection of an attention that is never called",
    "a16": "pickle and deepcopy while watched",
    "a18": "per-sample gradients with torch.func",
    "b01": "logarithm of zero",
    "b02": "root of zero",
    "b04": "where() behind the operation",
    "b06": "sequence that is all padding",
    "b08": "deviation of one sample",
    "b09": "loss without a label",
    "b16": "half-precision overflow",
    "b17": "bad data",
    "b18": "learning rate too high",
    "b20": "first steps of a gradient scaler",
    "b21": "NaN hidden by a gradient scaler",
    "b23": "chain of sigmoids",
    "b24": "graph cut in the middle",
    "b26": "branch that begins at zero",
    "b27": "bare function between two children",
    "b31": "NaN that reaches no parameter",
    "c01": "logging a step of bad numbers",
    "c03": "rows beside the user's own",
    "c05": "norms under accumulation",
    "c07": "hundreds and thousands of layers",
    "d01": "gradients that carry the loss scale",
    "d02": "optimizer that unscales itself",
    "d03": "accumulation, last window short",
    "d04": "clipping after the measurement",
    "d05": "two optimizers stepped by hand",
    "d06": "schedulers and a rate that is adapted",
    "d10": "no logger, dry run, several loggers",
    "d11": "training step that returns None",
    "d14": "NaN on one rank of two",
    "d15": "zero norms in the rate's ratio",
    "d16": "two fits, exceptions and Ctrl-C",
    "d20": "rate taken back in time, skipped steps included",
}


def run_tests(report: Path) -> int:
    """Run the cases; each test leaves its note in the report.

    Args:
        report: Where the report goes.

    Returns:
        pytest's exit status.
    """
    # Properties of a test are part of the older report format only.
    options = ["-q", f"--junitxml={report}", "-o", "junit_family=xunit1"]
    command = [sys.executable, "-m", "pytest", "tests/cases", *options]
    return subprocess.run(command, cwd=ROOT, check=False, stdout=sys.stderr).returncode


def read_notes(report: Path) -> dict[tuple[str, str], list[str]]:
    """Give what was said, by case and expectation.

    Args:
        report: pytest's report.
    """
    said: dict[tuple[str, str], list[str]] = {}
    # The report was written by pytest a moment ago.
    for place in ET.parse(report).iter("property"):  # noqa: S314
        if place.get("name") == "case":
            case, expected, got = json.loads(place.get("value", ""))
            said.setdefault((case, expected), []).append(got)
    return said


def escape(words: str) -> str:
    """Give words that stand for themselves in a table.

    Args:
        words: Any text.
    """
    return words.replace("|", "\\|").replace("<", "&lt;")


def make_table(said: dict[tuple[str, str], list[str]]) -> str:
    """Give the rows of the table.

    Args:
        said: What `read_notes` gave.
    """
    rows = []
    for (case, expected), got in sorted(said.items()):
        cells = (case, KINDS[case], escape(expected), escape(got[0]), str(len(got)))
        rows.append(f"| {' | '.join(cells)} |")
    return HEAD + "\n".join(rows) + "\n"


def main() -> None:
    """Run the cases, print the table, write it on request."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        status = run_tests(report)
        said = read_notes(report)
    table = make_table(said)
    missing = sorted(KINDS.keys() - {case for case, _ in said})
    print(table)
    if status or missing:
        sys.exit(f"not all cases hold (pytest ended with {status}); without a note: {missing}")
    if "--write" in sys.argv:
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(table, encoding="utf-8")


if __name__ == "__main__":
    main()
