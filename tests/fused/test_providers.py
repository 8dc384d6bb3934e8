"""Who is asked, and what torch's own functions stand in for."""

import importlib.util

import pytest
import torch
from torch import Tensor, nn

from gradwatch.fused.providers import TorchFused, resolve
from tests.fused.lab import Net, run_trial, verdicts


class RootMeanSquare(nn.Module):
    """A norm written by hand."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


def test_torchs_own_norm_takes_the_place_of_one_written_by_hand() -> None:
    result = run_trial(Net(RootMeanSquare), [TorchFused()], mode="force")
    assert verdicts(result)["RMSNorm by hand"] == "kept"
    assert {each.key[2] for each in result.kept} == {"torch"}


def test_torch_offers_nothing_for_its_own_layers() -> None:
    assert run_trial(Net(nn.LayerNorm), [TorchFused()], mode="force").kept == ()


def test_liger_is_left_out_where_it_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    assert [each.name for each in resolve(("liger", "torch"))] == ["torch"]
