"""Odd models and odd loops: nothing breaks, nothing is hidden, nothing is told that is not so."""

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value
from torch.nn import functional as F

from gradwatch import ConfigurationError, MemorySink, NonFiniteOptions, watch
from tests.kit import Net, build, fit, make_loader, watcher

SPOILT = 3


def make_net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def step_as_usual(model: nn.Module, optimizer: Any, x: Tensor, y: Tensor) -> Tensor:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss


def train(
    step: Callable[..., Tensor],
    make: Callable[[], nn.Module] = make_net,
    *,
    spoil: bool = False,
    watched: bool = True,
    **options: Any,
) -> tuple[list[float], MemorySink]:
    """Train ten steps in a plain loop; give the losses and what the sink was told."""
    torch.manual_seed(1)
    model, sink = make(), MemorySink()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    batches = torch.randn(10, 4, 6)
    if spoil:
        batches[SPOILT, 1, 2] = float("nan")
    options = {"log_every_n_steps": 1, "console": False, "sinks": [sink], **options}
    handle = watch(model, optimizer, **options) if watched else None
    y = torch.tensor([0, 1, 2, 0])
    losses = [step(model, optimizer, x, y).item() for x in batches]
    if handle is not None:
        handle.close()
    return losses, sink


def step_in_parts(model: Any, optimizer: Any, x: Tensor, y: Tensor) -> Tensor:
    return step_as_usual(lambda x: model[2](model[1](model[0](x))), optimizer, x, y)  # type: ignore[arg-type]


def step_functionally(model: nn.Module, optimizer: Any, x: Tensor, y: Tensor) -> Tensor:
    own: dict[str, Tensor] = dict(model.named_parameters())

    def loss_of(parameters: dict[str, Tensor]) -> Tensor:
        return F.cross_entropy(functional_call(model, parameters, (x,)), y)

    grads, loss = grad_and_value(loss_of)(own)
    for name, parameter in own.items():
        parameter.grad = grads[name]
    optimizer.step()
    return torch.as_tensor(loss)


def step_by_hand(model: nn.Module, optimizer: Any, x: Tensor, y: Tensor) -> Tensor:
    loss = F.cross_entropy(model(x), y)
    parameters = list(model.parameters())
    for parameter, grad in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
        parameter.grad = grad
    optimizer.step()
    return loss


class PlainObject(nn.Module):
    """Hands its output over in an object no walk enters."""

    def __init__(self) -> None:
        super().__init__()
        self.net = make_net()

    def forward(self, x: Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=self.net(x))


def step_through_object(model: nn.Module, optimizer: Any, x: Tensor, y: Tensor) -> Tensor:
    return step_as_usual(lambda x: model(x).logits, optimizer, x, y)  # type: ignore[arg-type]


def make_frozen_statistics() -> nn.Module:
    return make_net().eval()


LOOPS: dict[str, tuple[Callable[..., Tensor], Callable[[], nn.Module]]] = {
    "only parts of the model are called": (step_in_parts, make_net),
    "the output is a plain object": (step_through_object, PlainObject),
    "the model trains in eval mode": (step_as_usual, make_frozen_statistics),
    "gradients from torch.func": (step_functionally, make_net),
    "gradients set by hand": (step_by_hand, make_net),
}


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_whose_backward_is_out_of_sight_is_watched_all_the_same(name: str) -> None:
    losses, sink = train(*LOOPS[name])
    assert losses == train(*LOOPS[name], watched=False)[0]
    assert [record.step for record in sink.records] == list(range(10))
    assert sink.findings == []


@pytest.mark.parametrize("name", LOOPS)
def test_a_bad_gradient_is_kept_out_where_the_backward_is_out_of_sight(name: str) -> None:
    skips = NonFiniteOptions(policy="skip", bundle=False)
    losses, sink = train(*LOOPS[name], spoil=True, non_finite=skips)
    assert [finding.step for finding in sink.findings] == [SPOILT]
    assert [step for step, loss in enumerate(losses) if math.isnan(loss)] == [SPOILT]


class Own(nn.Module):
    """A forward of one's own: what is torch's alone is not compiled in place."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Any:
        return self.second(torch.relu(self.first(x)))


def make_compiled_in_place() -> nn.Module:
    model = Own()
    model.compile(backend="eager", fullgraph=True)
    return model


def test_a_model_compiled_in_place_is_not_compiled_again_for_being_watched() -> None:
    counted = torch._dynamo.utils.counters
    torch._dynamo.reset()
    counted.clear()
    bare, _ = train(step_as_usual, make_compiled_in_place, watched=False)
    graphs = counted["stats"]["unique_graphs"]
    torch._dynamo.reset()
    counted.clear()
    losses, sink = train(step_as_usual, make_compiled_in_place)
    assert losses == bare
    assert len(sink.records) == 10
    assert counted["stats"]["unique_graphs"] == graphs == 1


class WithEmpty(Net):
    """Holds a parameter without elements and a layer without outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.empty = nn.Parameter(torch.zeros(0, 4))
        self.none = nn.Linear(6, 0)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.empty.sum() + self.none(x).sum()


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_parameters_without_elements_are_neither_dead_nor_cut_off() -> None:
    callback, sink = watcher()
    fit(build(WithEmpty), [callback], log_every_n_steps=1)
    assert len(sink.records) == 14
    assert callback.findings == ()


class Idle(pl.LightningModule):
    """A module without parameters, as some are that only look at their data."""

    def training_step(self, batch: Any, batch_idx: int) -> None:
        return None

    def configure_optimizers(self) -> None:
        return None


@pytest.mark.filterwarnings(
    "ignore:.LightningModule.configure_optimizers. returned .None.",
    "ignore:.training_step. returned .None.",
)
def test_a_module_without_parameters_fits() -> None:
    callback, _ = watcher()
    assert fit(Idle(), [callback]).fit_loop.epoch_loop.total_batch_idx == 13
    assert callback.findings == ()


def test_weights_spoilt_by_a_warned_of_gradient_are_not_put_down_to_the_start() -> None:
    warns = NonFiniteOptions(policy="warn", cooldown=3)
    callback, sink = watcher(non_finite=warns)
    fit(build(Net), [callback], make_loader(28, spoil=range(28)))
    first, *later = [finding for finding in sink.findings if finding.rule == "non_finite"]
    assert (first.layer, first.step) == ("<input>", 0)
    assert later
    for finding in later:
        assert "by the update of step 0" in finding.summary
        assert finding.cause == "the non-finite gradient of step 0 was let through"


def refuse(*arguments: Any, **options: Any) -> str:
    with pytest.raises(ConfigurationError) as refused:
        watch(*arguments, console=False, **options)
    return str(refused.value)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is:DeprecationWarning")
def test_what_is_no_model_optimizer_or_option_is_refused_in_words() -> None:
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    assert "got none" in refuse(model, [])
    assert "got NoneType" in refuse(model, None)
    assert "got StepLR" in refuse(model, schedule)
    assert "got function" in refuse(make_net, optimizer)
    assert "got MemorySink" in refuse(model, optimizer, sinks=MemorySink())
    assert "expected NonFiniteOptions" in refuse(model, optimizer, non_finite="skip")
    assert "a scripted model takes no hooks" in refuse(torch.jit.script(model), optimizer)
