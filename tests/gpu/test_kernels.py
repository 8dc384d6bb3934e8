"""The kernels on a card: parity, determinism, and nothing that waits."""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from gradwatch.fused import LAYERS, layer_norm, swap
from gradwatch.kernels import missing

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or missing("cuda") is not None,
        reason="needs a CUDA device and Triton",
    ),
]

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "kernels.py"


def load_benchmark() -> Any:
    """Load the script that holds the cases: what is timed is what is checked."""
    spec = importlib.util.spec_from_file_location("kernels_benchmark", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


BENCHMARK = load_benchmark()


@pytest.mark.parametrize("rows", [1, 257])
@pytest.mark.parametrize("case", BENCHMARK.CASES, ids=lambda c: f"{c.layer} {c.columns} {c.dtype}")
def test_the_error_is_at_most_twice_the_stock_operations(case: Any, rows: int) -> None:
    assert BENCHMARK.check_parity(case, rows)


@pytest.mark.parametrize("case", BENCHMARK.CASES, ids=lambda c: f"{c.layer} {c.columns} {c.dtype}")
def test_the_same_input_gives_the_same_bits(case: Any) -> None:
    inputs = case.make(2048, case.columns, case.dtype)
    dy = BENCHMARK.gradient(case, inputs)
    first, second = (BENCHMARK.both_passes(case.ours, inputs, dy) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_autocast_answers_in_the_stock_dtype() -> None:
    module, x = nn.LayerNorm(96).cuda(), torch.randn(4, 96, device="cuda").bfloat16()
    with torch.autocast("cuda", torch.bfloat16):
        stock = module(x)
        assert LAYERS[nn.LayerNorm].eligible(module, x) is None
        swap(module)
        fused = module(x)
    assert fused.dtype == stock.dtype
    torch.testing.assert_close(fused, stock)


def test_a_step_waits_for_the_device_nowhere() -> None:
    module, x = nn.LayerNorm(96).cuda(), torch.randn(64, 96, device="cuda", requires_grad=True)
    swap(module)
    module(x).sum().backward()
    torch.cuda.set_sync_debug_mode("error")
    try:
        module(x).sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_batch_norm_tracks_the_statistics_and_keeps_the_layout_of_the_stock_one(
    layout: torch.memory_format,
) -> None:
    stock, fused = nn.BatchNorm2d(48).cuda(), nn.BatchNorm2d(48).cuda()
    swap(fused)
    for step in range(3):
        x = torch.randn(8, 48, 14, 14, device="cuda") * (step + 1) + step
        outputs = [module(x.contiguous(memory_format=layout)) for module in (stock, fused)]
    torch.testing.assert_close(outputs[1], outputs[0], rtol=1e-5, atol=1e-5)
    assert outputs[1].stride() == outputs[0].stride()
    torch.testing.assert_close(dict(fused.named_buffers()), dict(stock.named_buffers()))


def test_dropout_draws_from_the_generator_of_its_device() -> None:
    module, x = nn.Dropout(0.3), torch.ones(512, 96, device="cuda")
    swap(module)
    masks = []
    for seed in (0, 0, 1):
        torch.cuda.manual_seed(seed)
        masks.append(module(x))
    assert torch.equal(masks[0], masks[1])
    assert not torch.equal(masks[0], masks[2])


def test_a_graph_draws_another_mask_at_every_replay() -> None:
    module, x = nn.Dropout(0.3), torch.ones(512, 96, device="cuda")
    swap(module)
    module(x)  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = module(x)
    replays = []
    for _ in range(2):
        graph.replay()
        replays.append(y.clone())
    assert not torch.equal(*replays)


@pytest.mark.parametrize("activation", [nn.ReLU, nn.GELU])
def test_a_pair_under_autocast_answers_as_the_stock_one(activation: type[nn.Module]) -> None:
    net = nn.Sequential(nn.Linear(96, 384), activation()).cuda()
    x, results = torch.randn(64, 96, device="cuda"), []
    for attach in (lambda module: None, swap):
        attach(net)
        with torch.autocast("cuda", torch.bfloat16):
            y = net(x)
        grads = torch.autograd.grad(y, list(net.parameters()), torch.ones_like(y))
        results.append([y.detach(), *grads])
    assert [t.dtype for t in results[0]] == [t.dtype for t in results[1]]
    torch.testing.assert_close(results[1], results[0], rtol=2e-2, atol=2e-2)


def test_a_compiled_swapped_module_agrees_with_the_eager_one() -> None:
    module, x = nn.LayerNorm(96).cuda(), torch.randn(64, 96, device="cuda")
    swap(module)
    whole: Callable[..., Any] = torch.compile(module, fullgraph=True)
    torch.testing.assert_close(whole(x), module(x))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_a_tensor_on_another_device_than_the_current_one_is_computed_there() -> None:
    x = torch.randn(4, 96, device="cuda:1")
    torch.testing.assert_close(layer_norm(x, (96,)), torch.nn.functional.layer_norm(x, (96,)))
