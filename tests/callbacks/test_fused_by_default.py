"""Whether fused layers are tried is the user's choice; by default it is only said what could be."""

import pytest
import torch

from gradwatch import FusedBackwardOptions
from gradwatch.callbacks import FusedBackward, GradWatch
from gradwatch.callbacks.base import MonitorCallback
from gradwatch.fused.part import FusedBackward as FusedBackwardPart


def modes(callback: MonitorCallback) -> list[str]:
    return [each.options.mode for each in callback.parts if isinstance(each, FusedBackwardPart)]


@pytest.mark.parametrize(("there", "expected"), [(True, ["advise"]), (False, [])])
def test_they_are_advised_where_there_is_a_device_that_their_kernels_run_on(
    there: bool, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    assert modes(GradWatch()) == expected
    assert modes(GradWatch(fused=False)) == []


def test_options_hold_on_any_device() -> None:
    assert modes(GradWatch(fused=FusedBackwardOptions())) == ["auto"]
    assert modes(FusedBackward()) == ["auto"]
    assert modes(FusedBackward(FusedBackwardOptions(mode="force"))) == ["force"]
