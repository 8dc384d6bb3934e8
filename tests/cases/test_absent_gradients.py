"""Layers without a gradient: cut off, frozen, unused or only just begun, each told apart."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

Run = Callable[..., Any]
Note = Callable[[str, str, str], None]


class Cut(nn.Module):
    """Cut the graph one way or another."""

    def __init__(self, how: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.how = how

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.how(x))


class Checkpointed(nn.Module):
    """Checkpoint the first block the old way: its input needs no gradient, so nothing gets one."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.block = nn.Sequential(*(nn.Linear(4, 4) for _ in range(depth)))
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(checkpoint(self.block, x, use_reentrant=True))


class Partly(nn.Module):
    """Frozen, integer and unused parameters beside one layer that learns."""

    def __init__(self, codes: torch.dtype) -> None:
        super().__init__()
        self.enc = nn.Linear(4, 4).requires_grad_(False)
        numbers = torch.randint(0, 100, (4, 2)).to(codes)
        self.codes = nn.Parameter(numbers, requires_grad=False)
        self.adapter, self.expert, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.adapter(self.enc(x)))


class LowRank(nn.Module):
    """A frozen layer with a low-rank branch that begins at zero."""

    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        self.base = nn.Linear(width, width).requires_grad_(False)
        self.down = nn.Linear(width, rank, bias=False)
        self.up = nn.Linear(rank, width, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


class Gated(nn.Module):
    """A residual branch behind a gate that begins at zero."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.branch, self.gate = nn.Linear(width, width), nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.gate * torch.tanh(self.branch(x))


def make_batches(count: int, width: int = 4) -> list[tuple[Tensor, Tensor]]:
    return [(torch.randn(5, width), torch.randn(5, 3)) for _ in range(count)]


def as_numpy_and_back(x: Tensor) -> Tensor:
    return torch.from_numpy(x.detach().numpy().copy())


def without_grad(x: Tensor) -> Tensor:
    with torch.no_grad():
        return x * 2


@pytest.mark.parametrize("how", [Tensor.detach, as_numpy_and_back, without_grad, lambda x: x.data])
def test_a_cut_graph_is_told_at_the_first_step_with_the_module_that_cuts_it(
    run: Run, note: Note, how: Callable[[Tensor], Tensor]
) -> None:
    layers: dict[str, nn.Module] = {
        "enc": nn.Linear(4, 4),
        "cut": Cut(how),
        "head": nn.Linear(4, 3),
    }
    outcome = run(nn.Sequential(*layers.values()), make_batches(3))
    finding = outcome.only("disconnected")
    assert (finding.step, finding.layer) == (0, "net.1")
    assert finding.evidence["layers_without_gradient"] == "net.0"
    assert finding.evidence["next_layer_with_gradient"] == "net.2"
    note("b24", "cut at the first step", f"{finding.layer}: {finding.summary}")


@pytest.mark.parametrize("depth", [1, 3])
def test_a_block_checkpointed_on_an_input_without_gradient_is_disconnected(
    run: Run, note: Note, depth: int
) -> None:
    # torch's own warning says the same, once and without a name.
    with pytest.warns(UserWarning, match="None of the inputs have requires_grad=True"):
        outcome = run(Checkpointed(depth), make_batches(2))
    finding = outcome.only("disconnected")
    assert finding.step == 0
    expected = ", ".join(f"net.block.{i}" for i in range(depth))
    assert finding.evidence["layers_without_gradient"] == expected
    assert finding.layer.startswith("net.block")
    note("a07", "no gradient for block.* at step 0", f"{finding.layer}: {finding.summary}")


@pytest.mark.parametrize("codes", [torch.uint8, torch.int8])
def test_frozen_integer_and_unused_parameters_are_no_alarm(
    run: Run, note: Note, codes: torch.dtype
) -> None:
    outcome = run(Partly(codes), make_batches(12))
    assert outcome.alarms == []
    finding = outcome.only("unused")
    assert (finding.layer, finding.severity, finding.step) == ("net.expert", "info", 4)
    assert [each.rule for each in outcome.findings] == ["unused"]
    note("a09", "unused only after k steps, nothing else", f"{finding.layer}: {finding.summary}")


@pytest.mark.parametrize(
    "branch", [LowRank(8, 2), LowRank(12, 4), Gated(8), nn.Sequential(Gated(6), Gated(6))]
)
def test_a_branch_that_begins_at_zero_is_healthy(run: Run, note: Note, branch: nn.Module) -> None:
    width = next(p.shape[-1] for p in branch.parameters() if p.ndim > 1)
    outcome = run(nn.Sequential(branch, nn.Linear(width, 3)), make_batches(20, width))
    assert outcome.findings == ()
    note("b26", "no alarm", "nothing told in 20 steps")
