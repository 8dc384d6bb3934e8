"""What is subtly wrong is rejected, each fault with its reason; what is right is not."""

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradwatch.fused.observe import half_now
from gradwatch.fused.operation import Call, Operation
from gradwatch.fused.parity import Parity, check
from gradwatch.non_finite.rng import RandomState
from tests.fused.lab import named, quick


class Twin(torch.autograd.Function):
    """A layer norm whose backward can be spoiled."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float, fault: str
    ) -> Tensor:
        mean, var = x.mean(-1, keepdim=True), x.var(-1, unbiased=False, keepdim=True)
        rstd = (var + eps).rsqrt()
        h = (x - mean) * rstd
        ctx.save_for_backward(h, rstd, weight)
        ctx.fault = fault
        if fault == "writes its input":
            x.detach().numpy()[...] += 1.0
        y = h * weight + bias
        return y.double() if fault == "wrong dtype" else y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        h, rstd, weight = ctx.saved_tensors
        if ctx.fault == "writes the gradient":
            dy.numpy()[...] += 1.0
        if ctx.fault == "believes in strides":
            wide = torch.empty(0).set_(dy.untyped_storage())
            dy = torch.cat([wide, wide.new_zeros(dy.numel())])[: dy.numel()].view(dy.shape)
        dy = dy.to(h.dtype)
        g = dy * weight
        dx = rstd * (g - g.mean(-1, keepdim=True) - h * (g * h).mean(-1, keepdim=True))
        scale = 1.01 if ctx.fault == "one per cent" else 1.0
        db = None if ctx.fault == "no bias gradient" else dy.sum(0)
        return dx * scale, (dy * h).sum(0), db, None, None


def spoiled(fault: str) -> Callable[..., Tensor]:
    def forward(self: nn.LayerNorm, x: Tensor) -> Tensor:
        if fault == "raises":
            raise ValueError("no such tile")
        if fault == "draws":
            torch.rand(1)
        y: Tensor = Twin.apply(  # type: ignore[no-untyped-call]
            x, self.weight, self.bias, self.eps, fault
        )
        return y[..., :-1] if fault == "wrong shape" else y

    return forward


def make_call(x: Tensor, gradient: Tensor | None = None) -> Call:
    if gradient is None:
        gradient = torch.randn(x.shape, generator=torch.Generator().manual_seed(1), dtype=x.dtype)
    return Call((x.requires_grad_(),), {}, (gradient,), RandomState.take(), half_now("cpu"))


def judged(fault: str, dtype: torch.dtype = torch.float32, limit: float = 20.0) -> Parity:
    torch.manual_seed(0)
    module = nn.LayerNorm(24).to(dtype)
    with torch.no_grad():
        module.weight.uniform_(0.5, 1.5)
    operation = Operation("LayerNorm", ("",), nn.LayerNorm.forward, spoiled(fault))
    return check(operation, module, make_call(torch.randn(40, 24).to(dtype)), limit)


def test_a_right_one_is_accepted_and_its_error_told() -> None:
    found = judged("none")
    assert found.agrees
    assert 0 < found.error < 1e-6
    assert 0 < found.stock_error < 1e-6


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("one per cent", "its gradient of the input is 1.0e-02 off, the stock one"),
        ("no bias gradient", "it gives no gradient of bias"),
        ("wrong dtype", "its output has dtype torch.float64, the stock one torch.float32"),
        ("wrong shape", r"its output has shape \(40, 23\), the stock one \(40, 24\)"),
        ("believes in strides", "with a gradient that comes strided"),
        ("writes its input", "it writes into its input"),
        ("writes the gradient", "it writes into the gradient it is given"),
        ("draws", "it draws random numbers, which the stock function does not"),
        ("raises", "it raised ValueError: no such tile"),
    ],
)
def test_a_fault_is_rejected_with_its_reason(fault: str, reason: str) -> None:
    with pytest.raises(AssertionError, match=reason):
        assert not judged(fault).reason, judged(fault).reason


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_short_types_are_held_to_their_own_rounding(dtype: torch.dtype) -> None:
    module = nn.LayerNorm(24).to(dtype)
    operation = Operation("LayerNorm", ("",), nn.LayerNorm.forward, quick)
    found = check(operation, module, make_call(torch.randn(64, 24).to(dtype)), 20.0)
    assert found.agrees, found.reason
    # Many roundings where the stock layer makes one.
    rough = Operation("LayerNorm", ("",), nn.LayerNorm.forward, named(in_steps))
    assert "off" in check(rough, module, make_call(torch.randn(64, 24).to(dtype)), 20.0).reason


def in_steps(self: nn.LayerNorm, x: Tensor) -> Tensor:
    y = (x - x.mean(-1, keepdim=True)) / (x.var(-1, unbiased=False, keepdim=True) + self.eps).sqrt()
    for factor in [1.1] * 10 + [1 / 1.1] * 10:
        y = y * factor
    return y * self.weight + self.bias


def test_one_that_hangs_is_left_behind() -> None:
    def forward(self: nn.LayerNorm, x: Tensor) -> Tensor:
        while True:
            time.sleep(0.01)

    module = nn.LayerNorm(8)
    operation = Operation("LayerNorm", ("",), nn.LayerNorm.forward, forward)
    found = check(operation, module, make_call(torch.randn(4, 8)), 0.2)
    assert found.reason == "it raised DeadlineError: the first call did not come back within 0.2 s"


def biased(self: Any, x: Tensor) -> Tensor:
    """A batch norm that writes the biased variance into its running statistics."""
    y = F.batch_norm(x, None, None, self.weight, self.bias, training=True, eps=self.eps)
    with torch.no_grad():
        self.num_batches_tracked.add_(1)
        self.running_mean.lerp_(x.mean((0, 2, 3)), 0.1)
        self.running_var.lerp_(x.var((0, 2, 3), unbiased=False), 0.1)
    return y


def test_buffers_are_compared_as_well() -> None:
    module: Any = nn.BatchNorm2d(3)
    operation = Operation("BatchNorm2d", ("",), nn.BatchNorm2d.forward, biased)
    x = torch.randn(2, 3, 4, 4)
    reason = check(operation, module, make_call(x), 20.0).reason
    assert reason.startswith("its buffer running_var is")
    assert torch.equal(module.running_mean, torch.zeros(3))


def uncounted(self: nn.BatchNorm2d, x: Tensor) -> Tensor:
    return F.batch_norm(
        x, self.running_mean, self.running_var, self.weight, self.bias, training=True
    )


def test_a_counter_that_stands_still_is_noticed() -> None:
    operation = Operation("BatchNorm2d", ("",), nn.BatchNorm2d.forward, uncounted)
    call = make_call(torch.randn(2, 3, 4, 4))
    reason = check(operation, nn.BatchNorm2d(3), call, 20.0).reason
    assert reason == "its buffer num_batches_tracked is not the stock one"


def test_a_layer_that_draws_random_numbers_cannot_be_compared() -> None:
    operation = Operation("Dropout", ("",), nn.Dropout.forward, nn.Dropout.forward)
    reason = check(operation, nn.Dropout(0.5), make_call(torch.randn(4, 8)), 20.0).reason
    assert "draws random numbers" in reason


def test_a_norm_that_casts_by_itself_is_measured_against_float64() -> None:
    """Its float64 twin would cast to float32 as well, and be no more exact than itself."""

    def stock(self: Any, x: Tensor) -> Tensor:
        y = x.float()
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-6)
        return self.weight * y.to(x.dtype)

    def forward(self: Any, x: Tensor) -> Tensor:
        return F.rms_norm(x, [24], self.weight, 1e-6)

    operation = Operation("norm", ("",), stock, forward)
    found = check(operation, nn.RMSNorm(24), make_call(torch.randn(40, 24)), 20.0)
    assert found.agrees, found.reason
    assert found.stock_error > 0


def test_nothing_of_the_module_is_touched() -> None:
    module, fired = nn.LayerNorm(8), []
    module.register_forward_hook(lambda *_: fired.append(1))
    module.weight.grad = torch.ones(8)
    before = {name: id(value) for name, value in vars(module).items()}
    operation = Operation("LayerNorm", ("",), nn.LayerNorm.forward, quick)
    assert check(operation, module, make_call(torch.randn(4, 8)), 20.0).agrees
    assert {name: id(value) for name, value in vars(module).items()} == before
    assert torch.equal(module.weight.grad, torch.ones(8))
    assert fired == []
