"""A swapped module is the module it was, but for its forward."""

import copy
import io
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from gradwatch.errors import ConfigurationError
from gradwatch.fused import LAYERS, swap

Make = Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]

MAKES: dict[str, Make] = {
    "LayerNorm": lambda: (nn.LayerNorm(8), (torch.randn(4, 8),)),
    "LayerNorm without bias": lambda: (nn.LayerNorm(8, bias=False), (torch.randn(4, 8),)),
    "LayerNorm over two dimensions": lambda: (nn.LayerNorm((4, 8)), (torch.randn(3, 4, 8),)),
    "LayerNorm without parameters": lambda: (
        nn.LayerNorm(8, elementwise_affine=False),
        (torch.randn(2, 4, 8),),
    ),
    "RMSNorm": lambda: (nn.RMSNorm(8), (torch.randn(4, 8) * 1e-3,)),
    "CrossEntropyLoss": lambda: (
        nn.CrossEntropyLoss(torch.rand(8), ignore_index=3, label_smoothing=0.1),
        (torch.randn(4, 8), torch.tensor([0, 3, 7, 1])),
    ),
    "BatchNorm2d": lambda: (nn.BatchNorm2d(3), (torch.randn(4, 3, 2, 2),)),
    "BatchNorm2d without parameters, outside training": lambda: (
        nn.BatchNorm2d(3, affine=False).eval(),
        (torch.randn(4, 3, 2, 2).contiguous(memory_format=torch.channels_last),),
    ),
    "GroupNorm": lambda: (nn.GroupNorm(2, 6), (torch.randn(2, 6, 2, 2),)),
    "GroupNorm without parameters": lambda: (
        nn.GroupNorm(2, 6, affine=False),
        (torch.randn(2, 6, 2, 2).contiguous(memory_format=torch.channels_last),),
    ),
    "Sequential of Linear and ReLU": lambda: (
        nn.Sequential(nn.Linear(8, 6), nn.ReLU()),
        (torch.randn(4, 8),),
    ),
    "Sequential of Linear and GELU": lambda: (
        nn.Sequential(nn.Linear(8, 6), nn.GELU(), nn.Linear(6, 3)),
        (torch.randn(4, 8),),
    ),
}


LAUNCHERS = (
    "norm",
    "cross_entropy",
    "batch_norm",
    "group_norm",
    "bias_activation",
    "column_sums",
)


def outcome(module: nn.Module, inputs: tuple[Tensor, ...]) -> list[Tensor]:
    x, *rest = inputs
    x = x.clone().requires_grad_()
    y = module(x, *rest)
    parameters = list(module.parameters())
    grads = torch.autograd.grad(y, [x, *parameters], torch.linspace(-1, 1, y.numel()).view_as(y))
    return [y.detach(), *grads]


@pytest.fixture(params=MAKES)
def made(request: pytest.FixtureRequest) -> tuple[nn.Module, tuple[Tensor, ...]]:
    return MAKES[request.param]()


def kernels_run(call: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> int:
    """Count kernel launches of a call: the stock way has none."""
    from gradwatch.kernels import _triton

    launches = []
    for name in LAUNCHERS:
        __import__(f"gradwatch.kernels.{name}")
        module = sys.modules[f"gradwatch.kernels.{name}"]

        def counted(*args: Any, **constants: Any) -> None:
            launches.append(args[0])
            _triton.launch(*args, **constants)

        monkeypatch.setattr(module, "launch", counted)
    call()
    return len(launches)


def test_a_swapped_module_gives_the_stock_outputs_and_gradients(
    made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, inputs = made
    stock = outcome(module, inputs)
    assert LAYERS[type(module)].eligible(module, *inputs) is None
    swap(module)
    results: list[Tensor] = []
    assert kernels_run(lambda: results.extend(outcome(module, inputs)), monkeypatch) >= 2
    torch.testing.assert_close(results, stock)


def test_undo_brings_the_stock_forward_back_and_may_be_called_twice(
    made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, inputs = made
    before = set(vars(module))
    undo = swap(module)
    undo()
    undo()
    assert set(vars(module)) == before
    assert kernels_run(lambda: outcome(module, inputs), monkeypatch) == 0


def test_state_dicts_load_both_ways_and_parameters_stay_the_same_objects(made: Any) -> None:
    module, _ = made
    stock = copy.deepcopy(module)
    identities, keys = [id(p) for p in module.parameters()], list(module.state_dict())
    swap(module)
    assert [id(p) for p in module.parameters()] == identities
    assert list(module.state_dict()) == keys
    module.load_state_dict(stock.state_dict(), strict=True)
    stock.load_state_dict(module.state_dict(), strict=True)


def test_a_deep_copy_computes_with_its_own_weights() -> None:
    module, x = nn.LayerNorm(8), torch.randn(4, 8)
    swap(module)
    average = copy.deepcopy(module)
    with torch.no_grad():
        average.weight.fill_(0.0)
    assert not average(x).any()
    assert module(x).any()


UNPICKLE = """
import pickle, sys
sys.modules["gradwatch"] = None
for module in pickle.loads(sys.stdin.buffer.read()):
    print(type(module).__name__, module.forward.__func__ is type(module).forward)
"""


def test_a_pickle_loads_as_the_stock_module_where_gradwatch_is_not_installed() -> None:
    modules = [make()[0] for make in MAKES.values()]
    for module in modules:
        swap(module)
    done = subprocess.run(
        [sys.executable, "-c", UNPICKLE],
        input=pickle.dumps(modules), capture_output=True, check=True, env=os.environ,
    )  # fmt: skip
    expected = [f"{type(module).__name__} True" for module in modules]
    assert done.stdout.decode().splitlines() == expected


def test_torch_save_and_load_keep_the_values() -> None:
    module, x = nn.LayerNorm(8), torch.randn(4, 8)
    swap(module)
    buffer = io.BytesIO()
    torch.save(module, buffer)
    buffer.seek(0)
    torch.testing.assert_close(torch.load(buffer, weights_only=False)(x), module(x))


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpointing_gives_the_same_bits(made: Any, use_reentrant: bool) -> None:
    module, (x, *rest) = made
    swap(module)
    results = []
    for take in (module, lambda *a: checkpoint(module, *a, use_reentrant=use_reentrant)):
        leaf = x.clone().requires_grad_()
        y = take(leaf, *rest)
        y.sum().backward()
        results.append((y, leaf.grad))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


# Dynamo itself instantiates the base class of Functions while it traces one.
@pytest.mark.filterwarnings("ignore:.*Function'> should not be instantiated")
def test_a_swapped_module_compiles_as_one_graph(made: Any) -> None:
    module, inputs = made
    swap(module)
    eager = outcome(module, inputs)
    whole: Any = torch.compile(module, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(outcome(whole, inputs), eager)


def test_hooks_frozen_parameters_and_mode_stay() -> None:
    module = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 3)).eval()
    norm, fired = module[1], []
    norm.bias.requires_grad_(False)
    norm.register_forward_hook(lambda *_: fired.append("forward"))
    norm.register_full_backward_hook(lambda *_: fired.append("backward"))
    swap(norm)
    module(torch.randn(5, 4)).sum().backward()
    assert fired == ["forward", "backward"]
    assert norm.bias.grad is None
    assert norm.weight.grad is not None
    assert not norm.training


@pytest.mark.parametrize(
    ("x", "reason"),
    [
        (torch.randn(4, 8, dtype=torch.float64), "computes in float32, which torch.float64"),
        (torch.randn(4, 8).bfloat16(), "input is torch.bfloat16, its weight torch.float32"),
        (torch.randn(4, 8, device="meta"), "kernels run on CUDA devices, not on 'meta'"),
    ],
    ids=["double", "mixed without autocast", "no kernels there"],
)
def test_what_a_kernel_cannot_take_is_named_and_goes_the_stock_way(x: Tensor, reason: str) -> None:
    weight = torch.float64 if x.dtype == torch.float64 else torch.float32
    module = nn.LayerNorm(8, device=x.device, dtype=weight)
    assert reason in str(LAYERS[nn.LayerNorm].eligible(module, x))
    stock = module(x)
    swap(module)
    swapped = module(x)
    assert (swapped.dtype, swapped.device) == (stock.dtype, stock.device)
    assert x.is_meta or torch.equal(swapped, stock)


def test_a_wide_row_is_refused() -> None:
    reason = LAYERS[nn.LayerNorm].eligible(nn.LayerNorm(8193), torch.randn(1, 8193))
    assert reason == "rows of 8193 elements spill registers (at most 8192)"


@pytest.mark.parametrize(
    ("x", "target", "reason"),
    [
        (torch.randn(2, 3, 4), torch.zeros(2, 4, dtype=torch.int64), "classes must come last"),
        (torch.randn(2, 3), torch.rand(2, 3), "only class indices are fused"),
        (torch.randn(2, 3), torch.zeros(3, dtype=torch.int64), "does not fit (2, 3)"),
    ],
)
def test_losses_of_other_forms_are_refused(x: Tensor, target: Tensor, reason: str) -> None:
    module = nn.CrossEntropyLoss()
    assert reason in str(LAYERS[nn.CrossEntropyLoss].eligible(module, x, target))


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_transforms_of_torch_func_go_the_stock_way() -> None:
    module, x = nn.LayerNorm(8), torch.randn(4, 8)
    swap(module)
    rows = torch.func.vmap(torch.func.grad(lambda row: module(row).square().sum()))(x)
    assert rows.shape == (4, 8)
    tangent = torch.func.jvp(module, (x,), (torch.ones(4, 8),))[1]
    torch.testing.assert_close(tangent, torch.zeros(4, 8), atol=1e-5, rtol=0.0)


class Scaled(nn.LayerNorm):
    """A subclass with a forward of its own."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return 2 * super().forward(input)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: Scaled(8), "Scaled has no fused forward"),
        (lambda: nn.Linear(2, 2), "Linear has no fused forward; these have: .*LayerNorm"),
        (lambda: swapped(nn.LayerNorm(8)), "has been replaced already"),
        (lambda: compiled(nn.LayerNorm(8)), "it is compiled"),
    ],
    ids=["subclass", "unknown", "swapped", "compiled"],
)
def test_a_module_that_cannot_be_swapped_is_refused_by_name(
    make: Callable[[], nn.Module], reason: str
) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        swap(make())


def swapped(module: nn.Module) -> nn.Module:
    swap(module)
    return module


def compiled(module: nn.Module) -> nn.Module:
    module.compile()
    return module
