"""The examples and the README's first one, run as a reader would, only shorter."""

import importlib
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent
Load = Callable[[str], ModuleType]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Load:
    """Import an example from its folder, as running it does; what it mutes stays audible."""
    monkeypatch.syspath_prepend(str(ROOT / "examples"))

    def by_name(name: str) -> ModuleType:
        module = importlib.import_module(name)
        if hasattr(module, "quiet"):
            monkeypatch.setattr(module, "quiet", lambda: None)
        return module

    return by_name


def test_the_demo_stops_before_the_weights_change_and_reads_its_alert_back(
    load: Load, capsys: pytest.CaptureFixture[str]
) -> None:
    demo = load("demo")
    model, before = demo.Digits(window=2), demo.Fingerprint()
    demo.show(demo.fit(model, before))
    told = capsys.readouterr().out
    assert before.seen == demo.fingerprint(model)
    assert "NaN born in blocks.2" in told
    assert "W&B alert   non_finite: blocks.2" in told
    assert "before-step-" in told
    report = Path(told.split("report      ")[1].splitlines()[0])
    assert "NaN born in blocks.2" in report.read_text()


def test_the_plain_loop_learns_and_nothing_is_found(
    load: Load, capsys: pytest.CaptureFixture[str]
) -> None:
    load("plain_loop").main(epochs=1)
    assert "findings: 0" in capsys.readouterr().out


def test_the_chain_of_sigmoids_is_told_to_vanish_and_the_chain_of_relus_is_not(
    load: Load, capsys: pytest.CaptureFixture[str]
) -> None:
    load("vanishing").main(epochs=1)
    sigmoid, relu = capsys.readouterr().out.split("== ReLU")
    assert "vanishing in 1 at step" in sigmoid
    assert "layers named: none" in relu


def test_broken_images_are_skipped_and_the_weights_stay_finite(
    load: Load, capsys: pytest.CaptureFixture[str]
) -> None:
    load("skip_bad_batches").main(max_steps=3)
    told = capsys.readouterr().out
    assert "NaN came in with batch[0] (sample 36)" in told
    assert "3 steps, 1 of them skipped" in told
    assert "the weights are finite" in told


def test_the_adaptive_rate_lowers_a_rate_that_is_too_high(
    load: Load, capsys: pytest.CaptureFixture[str]
) -> None:
    load("adaptive_lr").main(max_steps=150)
    fixed, inverse = capsys.readouterr().out.strip().splitlines()
    assert fixed.endswith("at the end 1")
    assert float(inverse.split()[-1]) < 1


def test_the_first_example_of_the_readme_says_what_the_readme_says_it_says(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text()
    code, said = (
        re.search(rf"```{kind}\n(.*?)```", text, re.DOTALL) for kind in ("python", "text")
    )
    assert code is not None
    assert said is not None
    (tmp_path / "demo.py").write_text(code[1])
    ran = subprocess.run(
        [sys.executable, "demo.py"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    head, written = said[1].splitlines()[:2]
    assert head in ran.stdout
    assert written.partition("demo.py:")[2] in ran.stdout
