"""A loss that is called where no forward can be swapped is named, with the way out."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradwatch import FusedBackwardOptions, MemorySink
from gradwatch.callbacks import FusedBackward
from gradwatch.fused.called import CalledLoss, LossesNoted
from gradwatch.fused.observe import observe
from gradwatch.fused.providers import Bundled
from tests.fused.lab import QUICK, Net, Offers, loss_of, make_batch, make_bench, quick, run_trial
from tests.kit import Calm, build, fit

WAY_OUT = "as nn.CrossEntropyLoss() kept on the model it could be tried"


def forward(self: nn.CrossEntropyLoss, x: Tensor, target: Tensor) -> Tensor:
    return nn.CrossEntropyLoss.forward(self, x, target)


def offers() -> Offers:
    return Offers(nn.CrossEntropyLoss, forward)


def rows(result: Any) -> list[tuple[Any, ...]]:
    return [(row.layers, row.kind, row.verdict, row.reason) for row in result.rows]


def test_one_in_the_step_itself_is_named_with_the_way_out() -> None:
    result = run_trial(Net(), [offers()], mode="advise")
    reason = f"called as a function in loss_of: {WAY_OUT}"
    assert rows(result) == [(("<root>",), "cross-entropy", "refused", reason)]


def test_one_that_is_called_again_and_again_is_named_once() -> None:
    def summed(model: nn.Module, batch: Any) -> Tensor:
        logits, target = model(batch[0]), batch[1]
        halves = zip(logits.chunk(2), target.chunk(2), strict=True)
        return torch.stack([F.cross_entropy(x, y) for x, y in halves]).sum()

    result = run_trial(Net(), [offers()], mode="advise", loss=summed)
    assert [(layers, kind) for layers, kind, _, _ in rows(result)] == [
        (("<root>",), "cross-entropy")
    ]


class Functional(Calm):
    """Calls its loss as a function of its training step."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return F.nll_loss(self(batch[0]).log_softmax(-1), batch[1])


def test_in_a_trainer_it_is_the_training_step_that_is_named() -> None:
    sink = MemorySink()
    options = FusedBackwardOptions(**QUICK, after_steps=1, providers=[offers()])
    fit(build(Functional), [FusedBackward(options, sinks=[sink])])
    (table,) = [each for each in sink.tables if each.name == "trials"]
    told = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    assert [row["reason"] for row in told] == [f"called as a function in training_step: {WAY_OUT}"]


class Chooses(nn.Module):
    """Branches on a value, which no trace can follow."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        logits = self.head(x)
        return F.cross_entropy(logits, target) * (2.0 if bool(logits.sum() > 0) else 1.0)


class Around(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Chooses()

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return self.inner(x, target)


def test_one_in_a_forward_that_cannot_be_rewritten_is_named_by_its_module() -> None:
    result = run_trial(
        Around(), [offers()], make_batch(), loss=lambda model, batch: model(*batch), mode="advise"
    )
    reason = f"called as a function in forward: {WAY_OUT}"
    assert rows(result) == [(("inner",), "cross-entropy", "refused", reason)]


class Kept(nn.Module):
    """Keeps torch's loss as a module, as it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.loss = Net(), nn.CrossEntropyLoss()

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return self.loss(self.net(x), target)


def test_the_way_out_leads_somewhere() -> None:
    result = run_trial(
        Kept(), [offers()], make_batch(), loss=lambda model, batch: model(*batch), mode="force"
    )
    assert [(layers, kind, verdict) for layers, kind, verdict, _ in rows(result)] == [
        (("loss",), "CrossEntropyLoss", "kept")
    ]


def test_a_provider_says_itself_what_it_cannot_take() -> None:
    result = run_trial(Net(), [Bundled()], mode="advise")
    (row,) = [row for row in result.rows if row.kind == "cross-entropy"]
    assert row.reason.startswith("kernels run on CUDA devices")


def test_small_ones_and_those_nobody_knows_are_not_spoken_of() -> None:
    assert rows(run_trial(Net(), [offers()], mode="advise", min_elements=19)) == []
    told = rows(run_trial(Net(), [Offers(nn.LayerNorm, quick)], mode="advise"))
    assert [kind for _, kind, _, _ in told] == ["LayerNorm"]


def noted(model: nn.Module, loss: Any) -> list[CalledLoss]:
    bench = make_bench(model, make_batch(), loss)
    with bench.opened():
        return observe(bench, list).losses


def test_what_is_noted_holds_no_logits() -> None:
    (call,) = noted(Net(), lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]))
    assert call.module is None
    assert [(each.shape, each.dtype) for each in call.inputs] == [
        ((6, 3), torch.float32), ((6,), torch.int64),
    ]  # fmt: skip
    assert {each.untyped_storage().nbytes() for each in call.inputs} == {4, 8}


# Dynamo looks at what every input has.
looked_at = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")


@looked_at
def test_nothing_is_noted_beside_a_compiled_module() -> None:
    model = Net()
    model.head.compile(backend="eager")
    assert noted(model, loss_of) == []


@looked_at
def test_a_compiled_function_is_not_compiled_anew() -> None:
    compiled: list[int] = []

    def backend(graph: Any, _inputs: Any) -> Any:
        compiled.append(1)
        return graph.forward

    @torch.compile(backend=backend, fullgraph=True)
    def loss(x: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(x, target)

    def run(model: nn.Module, batch: Any) -> Tensor:
        return loss(model(batch[0]), batch[1])

    model = Net()
    run(model, make_batch())
    assert noted(model, run) == []
    assert compiled == [1]


@looked_at
def test_a_function_that_is_compiled_while_losses_are_noted_stays_whole() -> None:
    compiled = torch.compile(F.cross_entropy, backend="eager", fullgraph=True)
    x, target = torch.randn(4, 3), torch.arange(4) % 3
    with LossesNoted(Net()):
        loss = compiled(x, target)
    torch.testing.assert_close(loss, F.cross_entropy(x, target))


def test_functions_are_as_they_were_when_the_step_is_over() -> None:
    def failing(model: nn.Module, batch: Any) -> Tensor:
        raise RuntimeError("no data")

    with pytest.raises(RuntimeError, match="no data"):
        noted(Net(), failing)
    assert not torch.overrides.has_torch_function_variadic(torch.ones(1))
