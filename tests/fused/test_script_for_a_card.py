"""The script that compares stock, trial and torch.compile, whose real sizes need a card."""

import sys
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from gradwatch.fused.options import FusedBackwardOptions
from tests.fused.lab import Offers, quick

pytest.importorskip("transformers", reason="transformers is not installed")


def run_script(monkeypatch: pytest.MonkeyPatch, *arguments: str, **options: Any) -> None:
    from tests.benchmarks import trial

    monkeypatch.setattr(sys, "argv", ["trial.py", *arguments])
    chosen = partial(FusedBackwardOptions, profile=False, **options)
    monkeypatch.setattr(trial, "FusedBackwardOptions", chosen)
    trial.main()


def test_on_tiny_models_it_tries_wears_and_takes_off(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    providers = (Offers(nn.LayerNorm, quick),)
    arguments = ("--small", "--steps", "1", "--no-compile")
    run_script(monkeypatch, *arguments, mode="force", providers=providers, regression_steps=1)
    vit, resnet = capsys.readouterr().out.split("== ")[1:]
    assert vit.startswith("ViT-B: 8 images a step, bf16-mixed")
    assert "5 layers swapped" in vit
    (row,) = [line for line in vit.splitlines() if "LayerNorm | lab" in line]
    assert "| kept |" in row
    assert "0 layers swapped" in resnet
    for told in (vit, resnet):
        rates = [line.split() for line in told.splitlines() if line.startswith(("stock", "auto"))]
        assert [each[0] for each in rates] == ["stock", "auto"]
        assert all(float(each[1]) > 0 for each in rates)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a card")
def test_without_a_card_it_says_the_way_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run_script(monkeypatch)
    assert "--small runs anywhere" in capsys.readouterr().err
