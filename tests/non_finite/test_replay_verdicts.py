"""Does it happen again? The verdict, the programs of a plain loop, the answer without a replay."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradwatch.findings import INPUT, LOSS, ROOT
from gradwatch.non_finite.blame import (
    NO_REPLAY,
    NOT_REPRODUCIBLE,
    NOT_RESTORABLE,
    REPRODUCIBLE,
    Blame,
)
from gradwatch.non_finite.capture import hold
from gradwatch.non_finite.program import ClosureProgram, ModelProgram, Suspects
from gradwatch.non_finite.replay import fallback, investigate
from tests.modules import Apply

Examine = Callable[..., Blame]


def around(function: Callable[[Tensor], Tensor]) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), Apply(function), nn.Linear(4, 3))


def test_dropout_draws_the_same_mask_again(examine: Examine) -> None:
    model = around(lambda x: nn.functional.dropout(x, 0.5).abs().sqrt())
    blame = examine(model, lambda x: model(x).pow(2).mean(), torch.randn(5, 4))
    assert (blame.place, blame.verdict) == ("1", REPRODUCIBLE)


def test_an_equal_loss_without_a_fault_is_not_reproducible(examine: Examine) -> None:
    broken = iter([float("nan")])

    def flip_a_bit_once(x: Tensor) -> Tensor:
        x.register_hook(lambda grad: grad * next(broken, 1.0))
        return x

    model = around(flip_a_bit_once)
    blame = examine(model, lambda x: model(x).pow(2).mean(), torch.randn(5, 4))
    assert (blame.verdict, blame.kind, blame.place) == (NOT_REPRODUCIBLE, "", "0")


def test_a_fault_that_one_replay_of_two_shows_is_not_reproducible(examine: Examine) -> None:
    runs = iter([0.0, 0.0])
    model = around(lambda x: torch.sqrt((x - x.detach() + next(runs, 1.0)).abs()))
    blame = examine(model, lambda x: model(x).sum() * 0, torch.randn(5, 4))
    assert (blame.place, blame.verdict) == ("1", NOT_REPRODUCIBLE)


def test_a_loss_that_differs_is_never_called_hardware(examine: Examine) -> None:
    drawn = iter(range(10))
    model = around(torch.log)
    run = lambda x: model(x).nan_to_num().sum() + next(drawn) + model(x).sum() * 0  # noqa: E731

    def finite(x: Tensor) -> Tensor:
        return torch.where(model[0](x) > 0, model[0](x).log(), 0.0).sum() + next(drawn)

    assert examine(model, run, torch.randn(5, 4)).verdict == REPRODUCIBLE
    assert examine(model, finite, torch.randn(5, 4)).verdict == NOT_RESTORABLE


def test_what_was_edited_in_place_is_told_with_a_loss_that_differs(examine: Examine) -> None:
    model = around(lambda x: torch.where(x > 0, x.sqrt(), x))

    def run(batch: dict[str, Tensor]) -> Tensor:
        out: Tensor = model(batch["x"].mul_(2)).pow(2).mean()
        return out

    blame = examine(model, run, {"x": torch.randn(5, 4)})
    assert (blame.place, blame.verdict) == ("1", NOT_RESTORABLE)
    assert blame.evidence["edited_in_place"] == "batch['x']"


def test_one_replay_is_enough_for_the_place(examine: Examine) -> None:
    model = around(lambda x: x.abs().log() * 0 + (x * 0).log())
    run = lambda batch: model(batch).sum()  # noqa: E731
    held = hold(torch.randn(5, 4))
    blame = investigate(model, held, ClosureProgram(run, held.batch), Suspects(), replays=1)
    assert (blame.place, blame.operation, blame.source) == ("1", "aten::log", "")


def test_a_model_is_replayed_from_its_inputs_and_the_gradient_at_its_outputs() -> None:
    model = around(lambda x: torch.where(x > 0, x.sqrt(), x))
    args = (torch.randn(5, 4),)
    output = model(*args)
    grad = torch.ones_like(output)
    program = ModelProgram(model, args, {}, [grad])
    suspects = Suspects(parameters=["0.weight", "0.bias"], loss=output.detach())
    blame = investigate(model, hold((args, {})), program, suspects)
    assert (blame.place, blame.operation) == ("1", "backward of aten::sqrt")
    assert blame.verdict == REPRODUCIBLE


def test_a_bad_gradient_at_finite_outputs_is_the_loss() -> None:
    model, args = around(torch.tanh), (torch.randn(5, 4),)
    grad = torch.ones(5, 3)
    grad[2, 1] = float("nan")
    program = ModelProgram(model, args, {}, [grad])
    blame = investigate(model, hold((args, {})), program, Suspects(parameters=["2.weight"]))
    assert (blame.place, blame.phase) == (LOSS, "backward")


def test_a_bad_argument_of_the_model_is_the_input() -> None:
    model, x = around(torch.tanh), torch.randn(5, 4)
    x[4] = float("inf")
    x[4, 0] = float("nan")
    program = ModelProgram(model, (x,), {}, [torch.ones(5, 3)])
    blame = investigate(model, hold(((x,), {})), program, Suspects())
    assert (blame.place, blame.batch_path, blame.samples) == (INPUT, "batch[0][0]", (4,))


def test_a_tensor_that_is_an_output_twice_has_one_gradient() -> None:
    layer, x = nn.Linear(4, 2), torch.randn(5, 4)
    grad = torch.ones(5, 2)
    program = ModelProgram(layer, (x,), {}, [grad, grad])
    output = layer(x)
    program.backward([output, output])
    assert torch.equal(layer.bias.grad, torch.full((2,), 5.0))  # type: ignore[arg-type]


class Several(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 2), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> dict[str, Any]:
        return {"first": self.a(x), "second": self.b(x).abs().log().detach() * 0 + self.b(x * 0)}


def test_a_model_with_several_outputs_gets_a_gradient_for_each() -> None:
    model, x = Several(), torch.randn(5, 4)
    with torch.no_grad():
        model.a.weight.fill_(float("nan"))
    program = ModelProgram(model, (x,), {}, [torch.ones(5, 2), None])
    blame = investigate(model, hold(((x,), {})), program, Suspects(parameters=["a.weight"]))
    assert blame.evidence["parameter"] == "a.weight"


@pytest.mark.parametrize(
    ("parameters", "order", "place"),
    [
        (["enc.weight", "head.bias", "mid.weight"], ["enc", "mid", "head"], "head"),
        (["enc.weight", "mid.weight"], ["enc", "mid", "head"], "mid"),
        (["scale"], ["<root>"], ROOT),
        (["a.parametrizations.weight.original0"], [], "a"),
        (["a.weight.original0", "head.bias"], ["head", "a"], "a"),
        ([], ["enc"], LOSS),
    ],
)
def test_without_a_replay_the_bad_layer_nearest_the_loss_is_named_and_labelled(
    parameters: list[str], order: list[str], place: str
) -> None:
    blame = fallback(Suspects(parameters=parameters, order=order), "declared by the user")
    assert blame.place == place
    assert blame.verdict == f"{NO_REPLAY}: declared by the user"
    assert blame.evidence["bad_parameters"] == len(parameters)


def test_an_input_that_the_step_itself_made_bad_in_place_is_not_called_bad_data(
    examine: Examine,
) -> None:
    model = around(nn.Identity())

    def step(x: Tensor) -> Tensor:
        x[0].div_(0.0)
        out: Tensor = model(x).pow(2).mean()
        return out

    blame = examine(model, step, torch.zeros(5, 4))
    assert (blame.place, blame.verdict) == (INPUT, NOT_RESTORABLE)
    assert blame.evidence["edited_in_place"] == "batch"
