"""Odd models that are well raise no alarm, in a plain loop and under Lightning; broken ones do."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

import gradwatch
from gradwatch import Finding
from tests.graph.odd import BROKEN, HEALTHY, ByHand, Odd, make
from tests.kit import fit, watcher


def in_a_loop(odd: Odd) -> Iterator[Finding]:
    optimizers = [make(part) for part in odd.parts]
    with gradwatch.watch(odd.model, optimizers, console=False) as watched:
        try:
            for _ in range(8):
                odd.step(odd.model, optimizers, lambda loss, **given: loss.backward(**given))
        except RuntimeError as error:
            assert "inplace operation" in str(error)  # noqa: PT017 - what PyTorch says is no matter
        yield from watched.findings


def under_lightning(odd: Odd) -> Iterator[Finding]:
    watch, sink = watcher()
    try:
        fit(ByHand(odd), [watch], max_epochs=1)
    except RuntimeError as error:
        assert "inplace operation" in str(error)  # noqa: PT017 - as above
    yield from sink.findings


@pytest.mark.parametrize("run", [in_a_loop, under_lightning])
@pytest.mark.parametrize("name", HEALTHY)
def test_what_is_odd_but_well_is_no_alarm(
    name: str, run: Callable[[Odd], Iterator[Finding]]
) -> None:
    torch.manual_seed(0)
    told = list(run(HEALTHY[name]()))
    assert [finding.lines()[0] for finding in told if finding.severity != "info"] == []


@pytest.mark.parametrize("run", [in_a_loop, under_lightning])
@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_is_named(name: str, run: Callable[[Odd], Iterator[Finding]]) -> None:
    torch.manual_seed(0)
    odd, rule, words = BROKEN[name]
    told = [finding for finding in run(odd()) if finding.severity != "info"]
    assert [finding.rule for finding in told] == [rule]
    prefix = "" if run is in_a_loop else "model."
    expected = words.replace("between a.2 and b.0", f"between {prefix}a.2 and {prefix}b.0")
    assert expected in told[0].summary


class TwoHeads(nn.Module):
    """Give two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.left, self.right = nn.Linear(8, 8), nn.Linear(8, 3), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.body(x)
        return self.left(hidden), self.right(hidden)


def test_a_head_whose_output_no_loss_uses_is_told_as_before() -> None:
    model = TwoHeads()
    optimizer = make(model)
    with gradwatch.watch(model, optimizer, console=False) as watched:
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(6, 8))[0].sum().backward()
            optimizer.step()
    assert [(told.rule, told.layer) for told in watched.findings] == [("disconnected", "right")]
