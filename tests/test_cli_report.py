"""``gradwatch report``: the path on the output, everything else beside it, and no silent choice."""

import io
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gradwatch.report.command import BAD_USE, DONE, run_report
from tests.report.records import RECORD, fault, step, write

ROOT = Path(__file__).parents[1]


def call(*arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-m", "gradwatch.cli", "report", *arguments],
        capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip


def test_the_path_alone_is_printed_so_that_a_script_can_use_it() -> None:
    write([step(0), fault(1)])
    done = call("logs")
    assert (done.returncode, done.stderr) == (DONE, "")
    assert done.stdout == f"{RECORD.with_name('report.html')}\n"
    assert "Needs a look" in Path(done.stdout.strip()).read_text()


def test_a_folder_without_a_record_ends_with_the_way_out_and_no_traceback() -> None:
    done = call(".")
    assert (done.returncode, done.stdout) == (BAD_USE, "")
    assert done.stderr.startswith("gradwatch: no run record in or below .")
    assert len(done.stderr.splitlines()) == 1


def test_without_a_folder_the_one_it_is_called_in_is_meant(
    capsys: pytest.CaptureFixture[str],
) -> None:
    write([step(0)])
    assert run_report(Path()) == DONE
    assert Path(capsys.readouterr().out.strip()).is_file()


def test_of_several_records_the_newest_is_taken_and_the_others_are_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    old = write([step(0)], Path("old/gradwatch_runs/record.jsonl"))
    new = write([step(0)], Path("new/gradwatch_runs/record.jsonl"))
    os.utime(old, (1, 1))
    assert run_report(Path()) == DONE
    told = capsys.readouterr()
    assert told.out == f"{new.with_name('report.html')}\n"
    assert f"2 run records; the newest is taken: {new}; not taken:\n  {old}\n" in told.err


def test_output_and_run_are_what_was_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    write([step(0), fault(0, "first.run")])
    write([step(0), fault(0, "second.run")])
    assert run_report(RECORD, output=Path("deep/mine.html"), run=1) == DONE
    assert capsys.readouterr().out == "deep/mine.html\n"
    assert "first.run" in Path("deep/mine.html").read_text()
    assert "second.run" not in Path("deep/mine.html").read_text()


def test_a_run_that_is_not_there_is_bad_use(capsys: pytest.CaptureFixture[str]) -> None:
    write([step(0)])
    assert run_report(RECORD, run=2) == BAD_USE
    assert re.match(r"gradwatch: .* holds 1 run.* no run 2", capsys.readouterr().err)


def test_a_terminal_is_told_how_far_the_reading_is(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal: Any = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    write([step(0)])
    assert run_report(RECORD) == DONE
    assert "reading the run record" in terminal.getvalue()
