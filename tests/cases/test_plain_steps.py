"""Ways to step in a plain loop: closures, optimizers that call their parent's step."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradwatch import MemorySink, NonFiniteGradientError, watch


class Derived(torch.optim.SGD):
    """Add nothing, but step through the parent, whose hooks run as well."""

    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


def make_batches(count: int = 4) -> list[Tensor]:
    return [torch.randn(5, 4) for _ in range(count)]


@pytest.mark.parametrize("kind", [torch.optim.SGD, Derived])
@pytest.mark.parametrize("with_closure", [False, True])
def test_each_step_is_told_once_with_the_gradient_it_applies(kind: Any, with_closure: bool) -> None:
    # The parent's own step bears hooks once an optimizer of its class has been made.
    torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)
    net, sink = nn.Linear(4, 1), MemorySink()
    optimizer, norms = kind(net.parameters(), lr=0.1), []
    with watch(net, optimizer, console=False, sinks=[sink], log_every_n_steps=1):
        for x in make_batches():

            def closure(x: Tensor = x) -> Tensor:
                optimizer.zero_grad()
                loss = net(x).square().mean()
                loss.backward()
                grads = [p.grad.flatten() for p in net.parameters() if p.grad is not None]
                norms.append(float(torch.cat(grads).norm()))
                return loss

            if with_closure:
                optimizer.step(closure)
            else:
                closure()
                optimizer.step()
    assert [record.step for record in sink.records] == [0, 1, 2, 3]
    assert [r.scalars["grad/norm"] for r in sink.records] == pytest.approx(norms, rel=1e-5)


@pytest.mark.parametrize("named", [False, True])
def test_a_bad_gradient_out_of_a_closure_is_stopped_before_the_weights(named: bool) -> None:
    net = nn.Linear(4, 1)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
    before = net.weight.detach().clone()

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = torch.sqrt(net(torch.zeros(5, 4)) * 0).sum()
        loss.backward()
        return loss

    with (
        watch(net, optimizer, console=False),
        pytest.raises(NonFiniteGradientError, match="stopped before the update"),
    ):
        optimizer.step(closure=closure) if named else optimizer.step(closure)
    assert torch.equal(net.weight, before)
