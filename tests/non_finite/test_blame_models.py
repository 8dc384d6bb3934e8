"""Models of every make: deep, compiled, tied, in place, half, sparse, functional, parametrized."""

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.func import functional_call, grad, vmap
from torch.nn import functional
from torch.nn.utils import parametrizations

from gradwatch.non_finite.blame import ONLY_COMPILED, REPRODUCIBLE, Blame
from tests.modules import Apply

Examine = Callable[..., Blame]


def root_of_square(x: Tensor) -> Tensor:
    return torch.sqrt((x * (x > 0)) ** 2)


def squares(model: nn.Module) -> Callable[[Any], Tensor]:
    return lambda x: cast("Tensor", model(x)).pow(2).mean()


class Faulty(nn.TransformerEncoderLayer):
    """A block whose feed-forward part takes the root of zeros."""

    def _ff_block(self, x: Tensor) -> Tensor:
        return super()._ff_block(root_of_square(x))


def make_transformer(depth: int = 12, planted: int = 6) -> nn.Sequential:
    def make(place: int) -> nn.TransformerEncoderLayer:
        kind = Faulty if place == planted else nn.TransformerEncoderLayer
        return kind(16, 2, 32, dropout=0.1, batch_first=True)

    blocks = nn.Sequential(*(make(place) for place in range(depth)))
    return nn.Sequential(nn.Linear(8, 16), blocks, nn.Linear(16, 4))


def test_a_fault_in_the_middle_of_twelve_blocks_with_dropout_is_found(examine: Examine) -> None:
    model = make_transformer()
    blame = examine(model, squares(model), torch.randn(3, 7, 8))
    assert (blame.place, blame.operation) == ("1.6", "backward of aten::sqrt")
    assert (blame.after, blame.before) == ("1.6.norm1", "1.6.linear1")
    assert blame.verdict == REPRODUCIBLE


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_under_autocast_the_fault_is_found(examine: Examine, dtype: torch.dtype) -> None:
    model = make_transformer(4, 2)

    def run(x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=dtype):
            return squares(model)(x)

    blame = examine(model, run, torch.randn(3, 7, 8))
    assert (blame.place, blame.verdict) == ("1.2", REPRODUCIBLE)


# The compiler itself looks at .grad of what is no leaf.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("whole", [True, False], ids=["compile(model)", "model.compile()"])
def test_a_compiled_model_is_replayed_uncompiled_under_the_users_names(
    examine: Examine, whole: bool
) -> None:
    plain = nn.Sequential(nn.Linear(4, 4), Apply(root_of_square), nn.Linear(4, 3))
    if whole:
        model = cast("nn.Module", torch.compile(plain, backend="eager"))
    else:
        model = plain
        plain.compile(backend="eager")
    blame = examine(model, squares(model), torch.randn(5, 4))
    assert (blame.place, blame.operation) == ("1", "backward of aten::sqrt")
    assert blame.verdict == REPRODUCIBLE


def test_a_fault_that_only_compiled_code_has_is_said_to_be_one(examine: Examine) -> None:
    def broken(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        return lambda *args: tuple(out * float("nan") for out in graph(*args))

    plain = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    model = torch.compile(plain, backend=broken)
    blame = examine(model, lambda x: model(x).pow(2).mean(), torch.randn(5, 4))
    assert blame.verdict == ONLY_COMPILED


def test_an_embedding_tied_to_the_head_does_not_draw_the_blame(examine: Examine) -> None:
    embed, head = nn.Embedding(10, 4), nn.Linear(4, 10, bias=False)
    head.weight = embed.weight
    model = nn.Sequential(embed, nn.Linear(4, 4), Apply(root_of_square), head)
    blame = examine(model, squares(model), torch.randint(10, (5, 3)))
    assert blame.place == "2"


def test_a_sparse_gradient_leads_back_to_the_fault(examine: Examine) -> None:
    model = nn.Sequential(nn.EmbeddingBag(10, 4, sparse=True), Apply(root_of_square))
    with torch.no_grad():
        model.get_parameter("0.weight").clamp_(max=0)
    blame = examine(model, lambda x: model(x).sum(), torch.randint(10, (5, 3)))
    assert blame.place == "1"


def test_operations_in_place_do_not_blur_who_wrote_what(examine: Examine) -> None:
    def in_place(x: Tensor) -> Tensor:
        y = x * 1
        y[:, 0].sub_(y[:, 0].detach())
        x += y.abs_().sqrt_()
        return x

    model = nn.Sequential(
        nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 4), Apply(in_place), nn.ReLU(True)
    )
    blame = examine(model, squares(model), torch.randn(5, 4))
    assert (blame.place, blame.operation) == ("3", "backward of aten::sqrt_")


def test_a_fault_without_gradient_tracking_is_found(examine: Examine) -> None:
    @torch.no_grad()
    def scale(x: Tensor) -> Tensor:
        return (x.mean() * 0).log() - (x.mean() * 0).log()

    model = nn.Sequential(nn.Linear(4, 4), Apply(lambda x: x * scale(x)))
    blame = examine(model, squares(model), torch.randn(5, 4))
    assert (blame.place, blame.operation, blame.phase) == ("1", "aten::log", "forward")


class Reciprocal(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, *grads: Tensor) -> Tensor:
        return grads[0] / (grads[0] * 0)


def test_the_backward_of_a_custom_function_is_called_by_its_name(examine: Examine) -> None:
    model = nn.Sequential(nn.Linear(4, 4), Apply(Reciprocal.apply), nn.Linear(4, 3))
    blame = examine(model, squares(model), torch.randn(5, 4))
    assert (blame.place, blame.operation) == ("1", "backward of Reciprocal")


def test_gradients_per_sample_by_torch_func_are_traced(examine: Examine) -> None:
    model = nn.Sequential(nn.Linear(4, 4), Apply(root_of_square))

    def run(x: Tensor) -> Tensor:
        weights = dict(model.named_parameters())
        one = lambda w, row: functional_call(model, w, (row,)).sum()  # noqa: E731
        per_sample = vmap(grad(one), in_dims=(None, 0))(weights, x)
        norms = torch.stack([(each**2).sum() for each in per_sample.values()])
        return cast("Tensor", norms.sum() + model(x).sum() * 0)

    blame = examine(model, run, torch.randn(5, 4))
    assert blame.kind
    assert blame.place == "1"


def test_a_gradient_penalty_is_traced_through_both_backwards(examine: Examine) -> None:
    model = nn.Sequential(nn.Linear(4, 4), Apply(root_of_square), nn.Linear(4, 1))

    def run(x: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        return (slope**2).mean()

    assert examine(model, run, torch.randn(5, 4)).place == "1"


def test_parametrized_and_wrapped_layers_keep_the_users_names(examine: Examine) -> None:
    inner = nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 4)), Apply(root_of_square))
    model = nn.ModuleDict({"block": checkpoint_wrapper(inner)})
    blame = examine(model, lambda x: model["block"](x).sum(), torch.randn(5, 4))
    assert (blame.place, blame.calls) == ("block.1", 1)


def test_a_weight_norm_of_a_zero_row_is_blamed_on_its_layer(examine: Examine) -> None:
    model = nn.Sequential(nn.Linear(4, 4), parametrizations.weight_norm(nn.Linear(4, 3)))
    with torch.no_grad():
        model.get_parameter("1.parametrizations.weight.original1")[1] = 0
    blame = examine(model, squares(model), torch.randn(5, 4))
    assert blame.place == "1"


@pytest.mark.filterwarnings("ignore:`torch.jit")
@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_code_in_a_scripted_module_belongs_to_its_caller_between_its_neighbours(
    examine: Examine,
) -> None:
    class Root(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.sqrt((x * (x > 0)) ** 2)

    model = nn.ModuleDict(
        {"enc": nn.Linear(4, 4), "op": torch.jit.script(Root()), "head": nn.Linear(4, 2)}
    )
    run = lambda x: model["head"](model["op"](model["enc"](x))).sum()  # noqa: E731
    blame = examine(model, run, torch.randn(5, 4))
    assert (blame.after, blame.before, blame.phase) == ("enc", "head", "backward")


def test_complex_numbers_are_traced(examine: Examine) -> None:
    model = nn.Sequential(nn.Linear(4, 4), Apply(lambda x: torch.fft.fft(x * 0).abs().log()))
    blame = examine(model, squares(model), torch.randn(5, 4))
    assert (blame.place, blame.operation) == ("1", "aten::log")


def test_a_fault_before_flash_attention_is_not_blamed_on_it(examine: Examine) -> None:
    def attend(x: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(x, x, x, is_causal=True)

    model = nn.Sequential(nn.Linear(4, 4), Apply(root_of_square), Apply(attend), nn.Linear(4, 2))
    assert examine(model, squares(model), torch.randn(2, 5, 4)).place == "1"
