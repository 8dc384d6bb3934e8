"""Parity, then one table: the fused layers against ATen eager and torch.compile, on a GPU.

    python tests/benchmarks/kernels.py

Each time is forward and backward together: the median of event-timed repeats over several sets of
fresh random data, each several times the L2. GB/s counts the bytes of the floor, so that a share of
100 % of the copy bandwidth measured in the same run would be the best there is. Then a whole
training step of a ViT-size and of a ResNet-50-size model, as it is and with its layers fused. Under
five minutes.
"""

import statistics
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradwatch.fused import (
    LAYERS,
    batch_norm_add_relu,
    batch_norm_relu,
    cross_entropy,
    group_norm_silu,
    layer_norm,
    rms_norm,
    swap,
    swiglu,
    swiglu_packed,
)

FP32, BF16 = torch.float32, torch.bfloat16
SETS = 3
REPEATS = 15
GIB = 2**30


class Case(NamedTuple):
    """A layer at one size: how to make its inputs, ours, and the stock way to the same result.

    Attributes:
        layer: Name in the table.
        rows: Rows of the activation.
        columns: Elements of a row.
        dtype: Of the activation.
        floor_bytes: Bytes an element that forward and backward must move together.
        make: Takes rows, columns and dtype; returns the inputs, those with a gradient first.
        ours: The fused layer.
        stock: The stock layer.
    """

    layer: str
    rows: int
    columns: int
    dtype: torch.dtype
    floor_bytes: float
    make: Callable[[int, int, torch.dtype], list[Tensor]]
    ours: Callable[..., Tensor]
    stock: Callable[..., Tensor]


def normed(rows: int, columns: int, dtype: torch.dtype) -> list[Tensor]:
    """Return an activation, weight and bias."""
    x = torch.randn(rows, columns, device="cuda").to(dtype).requires_grad_()
    return [x, *(torch.randn(columns, device="cuda", requires_grad=True) for _ in range(2))]


def matched(rows: int, columns: int, dtype: torch.dtype) -> list[Tensor]:
    """Return an activation, weight and bias, all of one dtype."""
    return [t.detach().to(dtype).requires_grad_() for t in normed(rows, columns, dtype)]


def classified(rows: int, columns: int, dtype: torch.dtype) -> list[Tensor]:
    """Return logits and targets."""
    x = torch.randn(rows, columns, device="cuda").to(dtype).requires_grad_()
    return [x, torch.randint(0, columns, (rows,), device="cuda")]


def imaged(rows: int, columns: int, dtype: torch.dtype) -> list[Tensor]:
    """Return images of 32 x 32 pixels in channels_last, two at least; weight, bias; a residual."""
    x, r = (
        torch.randn(max(rows // 1024, 2), columns, 32, 32, device="cuda").to(dtype)
        for _ in range(2)
    )
    x, r = (t.contiguous(memory_format=torch.channels_last).requires_grad_() for t in (x, r))
    return [x, *(torch.randn(columns, device="cuda", requires_grad=True) for _ in range(2)), r]


def images(rows: int, columns: int, dtype: torch.dtype) -> list[Tensor]:
    """Return what ``imaged`` does, without the residual."""
    return imaged(rows, columns, dtype)[:3]


def bn_relu(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Run our BatchNorm with ReLU."""
    return batch_norm_relu(x, None, None, w, b, training=True)


def bn_add_relu(x: Tensor, w: Tensor, b: Tensor, r: Tensor) -> Tensor:
    """Run our BatchNorm with residual and ReLU."""
    return batch_norm_add_relu(x, r, None, None, w, b, training=True)


def gn_silu(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Run our GroupNorm with SiLU, as under autocast."""
    return group_norm_silu(x, 32, w, b, dtype=FP32)


def stock_bn_relu(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Run the stock BatchNorm and ReLU."""
    return F.relu(F.batch_norm(x, None, None, w, b, training=True))


def stock_bn_add_relu(x: Tensor, w: Tensor, b: Tensor, r: Tensor) -> Tensor:
    """Run the stock BatchNorm, addition and ReLU."""
    return F.relu(F.batch_norm(x, None, None, w, b, training=True) + r)


def stock_gn_silu(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Run the stock GroupNorm and SiLU."""
    return F.silu(F.group_norm(x, 32, w, b))


def ln(dtype: torch.dtype | None = None) -> Callable[..., Tensor]:
    """Return our LayerNorm with an output of this dtype."""
    return lambda x, w, b: layer_norm(x, w.shape, w, b, dtype=dtype)


def rms(dtype: torch.dtype | None = None) -> Callable[..., Tensor]:
    """Return our RMSNorm with an output of this dtype."""
    return lambda x, w, b: rms_norm(x, w.shape, w, dtype=dtype)


def stock_ln(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Run the stock LayerNorm."""
    return F.layer_norm(x, w.shape, w, b)


def stock_rms(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Run the stock RMSNorm."""
    return F.rms_norm(x, w.shape, w)


def gates(rows: int, columns: int, dtype: torch.dtype) -> list[Tensor]:
    """Return a gate and what it is multiplied by."""
    return [torch.randn(rows, columns, device="cuda").to(dtype).requires_grad_() for _ in range(2)]


def packed(rows: int, columns: int, dtype: torch.dtype) -> list[Tensor]:
    """Return both side by side."""
    return gates(rows, 2 * columns, dtype)[:1]


def biased(rows: int, columns: int, dtype: torch.dtype) -> list[Tensor]:
    """Return a product, its bias and a residual."""
    x, r = gates(rows, columns, dtype)
    return [x, torch.randn(columns, device="cuda", requires_grad=True), r]


def products(rows: int, columns: int, dtype: torch.dtype) -> list[Tensor]:
    """Return a product and the bias that it holds."""
    return biased(rows, columns, dtype)[:2]


def stock_swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """Run SiLU and the product."""
    return F.silu(gate) * up


def stock_packed(x: Tensor) -> Tensor:
    """Run SiLU and the product on halves."""
    gate, up = x.chunk(2, -1)
    return F.silu(gate) * up


def fused_activation(act: str) -> Callable[..., Tensor]:
    """Return our activation with the bias's gradient; importing it needs Triton."""

    def run(z: Tensor, b: Tensor) -> Tensor:
        from gradwatch.kernels.bias_activation import bias_activation

        return bias_activation(z, b, act)

    return run


class Biased(torch.autograd.Function):
    """What addmm does with its bias: nothing forward, a sum over rows backward."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, b: Tensor) -> Any:
        """Return z, which holds b."""
        ctx.dtype = b.dtype
        return z.view_as(z)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Return the gradient and its sum over rows."""
        return grads[0], grads[0].sum(0).to(ctx.dtype)


def stock_relu(z: Tensor, b: Tensor) -> Tensor:
    """Run ReLU behind a product and its bias."""
    apply: Callable[..., Tensor] = Biased.apply
    return F.relu(apply(z, b))


def stock_gelu(z: Tensor, b: Tensor) -> Tensor:
    """Run GELU behind a product and its bias."""
    apply: Callable[..., Tensor] = Biased.apply
    return F.gelu(apply(z, b))


def fused_dropout(x: Tensor, b: Tensor, r: Tensor) -> Tensor:
    """Run our dropout with bias and residual, always from one seed."""
    from gradwatch.kernels.dropout import dropout

    seed = torch.full((1,), 7, device=x.device)
    return dropout(x, 0.1, b, residual=r, seed=seed)


def stock_dropout(x: Tensor, b: Tensor, r: Tensor) -> Tensor:
    """Run bias, dropout and residual."""
    return F.dropout(x + b.to(x.dtype), 0.1) + r


def masked_dropout(x: Tensor, b: Tensor, r: Tensor) -> Tensor:
    """Run the same on the mask that ours draws in bfloat16."""
    ones, zero = torch.ones_like(x, dtype=BF16), torch.zeros_like(x, dtype=BF16)
    with torch.no_grad():
        keep = fused_dropout(ones, torch.zeros_like(b), zero) != 0
    return ((x + b) * keep / 0.9 + r).to(x.dtype)


def autocast(stock: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Run a stock layer under CUDA's autocast, which answers in float32."""

    def run(*inputs: Tensor) -> Tensor:
        with torch.autocast("cuda", BF16):
            return stock(*inputs)

    return run


def fused_loss(x: Tensor, t: Tensor) -> Tensor:
    """Run our cross-entropy as under autocast."""
    return cross_entropy(x, t, dtype=FP32)


CASES = [
    Case("LayerNorm", 65536, 1024, FP32, 20, normed, ln(), stock_ln),
    Case("LayerNorm", 16384, 4096, BF16, 10, matched, ln(), stock_ln),
    Case("LayerNorm autocast", 16384, 4096, BF16, 14, normed, ln(FP32), autocast(stock_ln)),
    Case("LayerNorm", 8192, 8192, FP32, 20, normed, ln(), stock_ln),
    Case("RMSNorm", 16384, 4096, BF16, 10, matched, rms(), stock_rms),
    Case("RMSNorm autocast", 16384, 4096, BF16, 14, normed, rms(FP32), autocast(stock_rms)),
    Case(
        "cross-entropy", 4096, 128_256, BF16, 6, classified, fused_loss, autocast(F.cross_entropy)
    ),
    Case("BatchNorm+ReLU", 131_072, 256, FP32, 32, images, bn_relu, stock_bn_relu),
    Case("BatchNorm+ReLU", 262_144, 256, BF16, 16, images, bn_relu, stock_bn_relu),
    Case("BatchNorm+add+ReLU", 262_144, 256, BF16, 20, imaged, bn_add_relu, stock_bn_add_relu),
    Case(
        "GroupNorm+SiLU autocast", 131_072, 512, BF16, 22, images, gn_silu, autocast(stock_gn_silu)
    ),
    Case("cross-entropy", 8192, 32_000, FP32, 12, classified, fused_loss, F.cross_entropy),
    Case("SwiGLU", 8192, 11_008, BF16, 16, gates, swiglu, stock_swiglu),
    Case("SwiGLU", 8192, 8192, FP32, 32, gates, swiglu, stock_swiglu),
    Case("SwiGLU-packed", 8192, 11_008, BF16, 16, packed, swiglu_packed, stock_packed),
    Case("bias+ReLU", 16384, 8192, BF16, 8.25, products, fused_activation("relu"), stock_relu),
    Case("bias+GELU", 16384, 8192, BF16, 10, products, fused_activation("gelu"), stock_gelu),
    Case("dropout+residual", 16384, 4096, BF16, 10, biased, fused_dropout, stock_dropout),
]

PLAIN: dict[str, Callable[..., Tensor]] = {
    "LayerNorm": stock_ln,
    "RMSNorm": stock_rms,
    "cross-entropy": F.cross_entropy,
    "BatchNorm+ReLU": stock_bn_relu,
    "BatchNorm+add+ReLU": stock_bn_add_relu,
    "GroupNorm+SiLU": stock_gn_silu,
    "SwiGLU": stock_swiglu,
    "SwiGLU-packed": stock_packed,
    "bias+ReLU": stock_relu,
    "bias+GELU": stock_gelu,
    "dropout+residual": masked_dropout,
}


def both_passes(function: Callable[..., Tensor], inputs: list[Tensor], dy: Tensor) -> list[Tensor]:
    """Run forward and backward; return the output and the gradients."""
    y = function(*inputs)
    leaves = [t for t in inputs if t.requires_grad]
    grads = torch.autograd.grad(y, leaves, dy.expand_as(y), allow_unused=True)
    return [y.detach(), *(g for g in grads if g is not None)]


def gradient(case: Case, inputs: list[Tensor]) -> Tensor:
    """Return a random gradient for the output of a case."""
    with torch.no_grad():
        return torch.randn_like(case.ours(*inputs))


def relative_error(got: Tensor, exact: Tensor) -> float:
    """Return the error relative to the exact values, in the 2-norm."""
    return float((got.double() - exact).norm() / exact.norm())


def check_parity(case: Case, rows: int) -> list[tuple[float, float]]:
    """Compare with float64 at a smaller number of rows.

    Args:
        case: The case.
        rows: Rows of the activation.

    Returns:
        Our error and the stock one for the output and each gradient.

    Raises:
        AssertionError: If ours is over twice the stock one.
    """
    inputs = case.make(rows, case.columns, case.dtype)
    dy = gradient(case, inputs)
    wide = [t.detach().double().requires_grad_() if t.is_floating_point() else t for t in inputs]
    plain = PLAIN[case.layer.split()[0]]
    # Stock dropout draws another mask: ours is held against plain operations on its own.
    reference = plain if case.stock is stock_dropout else case.stock
    ours, stock = (both_passes(f, inputs, dy) for f in (case.ours, reference))
    exact = both_passes(plain, wide, dy.double())
    errors = []
    for got, theirs, true in zip(ours, stock, exact, strict=True):
        pair = relative_error(got, true), relative_error(theirs, true)
        chance = torch.finfo(got.dtype).eps / min(got.numel(), 16)
        assert pair[0] <= 2 * pair[1] + chance, f"{case.layer} {case.dtype}: {pair}"
        errors.append(pair)
    return errors


def milliseconds(run: Callable[[int], object], repeats: int = REPEATS) -> float:
    """Return the median time of a call, which is handed the number of its repeat."""
    for warm_up in range(SETS):
        run(warm_up)
    times = []
    for repeat in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run(repeat)
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def copy_bandwidth() -> float:
    """Measure GB/s of a copy of 1 GiB: read and written."""
    sources = [torch.empty(GIB, dtype=torch.uint8, device="cuda").random_() for _ in range(SETS)]
    target = torch.empty_like(sources[0])
    return 2 * GIB / milliseconds(lambda i: target.copy_(sources[i % SETS])) / 1e6


def measure(case: Case, bandwidth: float) -> str:
    """Time one case and return its row of the table."""
    sets = [case.make(case.rows, case.columns, case.dtype) for _ in range(SETS)]
    grads = [gradient(case, inputs) for inputs in sets]
    ways = (case.stock, torch.compile(case.stock), case.ours)

    def timed(way: Callable[..., Tensor]) -> float:
        return milliseconds(lambda i: both_passes(way, sets[i % SETS], grads[i % SETS]))

    stock, compiled, ours = (timed(way) for way in ways)
    rate = case.rows * case.columns * case.floor_bytes / ours / 1e6
    return (
        f"| {case.layer} | {case.rows} x {case.columns} | {str(case.dtype).removeprefix('torch.')} "
        f"| {stock:.3f} | {compiled:.3f} | {ours:.3f} | {rate:.0f} | {rate / bandwidth:.0%} |"
    )


def vit(width: int = 768, depth: int = 12) -> nn.Module:
    """Return the encoder of a ViT-Base."""
    layer = nn.TransformerEncoderLayer(
        width, 12, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
    )
    return nn.TransformerEncoder(layer, depth, enable_nested_tensor=False).cuda()


class Bottleneck(nn.Module):
    """A block of ResNet-50; ``fused`` says how its norms, additions and ReLUs run."""

    fused = False

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        sizes = ((channels, width, 1, 1), (width, width, 3, stride), (width, 4 * width, 1, 1))
        self.convs = nn.ModuleList(
            nn.Conv2d(i, o, k, s, k // 2, bias=False) for i, o, k, s in sizes
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(o) for _, o, _, _ in sizes)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or channels != 4 * width:
            conv = nn.Conv2d(channels, 4 * width, 1, stride, bias=False)
            self.shortcut = nn.Sequential(conv, nn.BatchNorm2d(4 * width))

    def forward(self, x: Tensor) -> Tensor:
        """Run three convolutions, each with its norm, and add the shortcut."""
        shortcut = self.shortcut(x)
        for conv, norm, residual in zip(
            self.convs, self.norms, (None, None, shortcut), strict=True
        ):
            x = self.activate(norm, conv(x), residual)
        return x

    def activate(self, norm: Any, x: Tensor, residual: Tensor | None) -> Tensor:
        """Normalise, add, and apply ReLU, one way or the other."""
        running = norm.running_mean, norm.running_var, norm.weight, norm.bias
        if not self.fused:
            y = norm(x)
            return F.relu(y if residual is None else y + residual)
        if residual is None:
            return batch_norm_relu(x, *running, training=True)
        return batch_norm_add_relu(x, residual, *running, training=True)


def resnet() -> nn.Module:
    """Return the four stages of a ResNet-50, in channels_last."""
    blocks, channels = [], 64
    for width, depth, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for at in range(depth):
            blocks.append(Bottleneck(channels, width, stride if at == 0 else 1))
            channels = 4 * width
    model: Any = nn.Sequential(*blocks)
    moved: nn.Module = model.to("cuda", memory_format=torch.channels_last)
    return moved


def whole_resnet_step() -> str:
    """Time a ResNet-50-size step with its norms, additions and ReLUs apart, fused, and apart."""
    model, batch = resnet(), torch.randn(64, 64, 56, 56, device="cuda")
    batch = batch.contiguous(memory_format=torch.channels_last)
    times = []
    for Bottleneck.fused in (False, True, False):
        times.append(step_milliseconds(model, batch))
    stock, fused, again = times
    return (
        f"ResNet-50 step without the stem, batch 64: stock {stock:.2f} ms, fused {fused:.2f} ms, "
        f"stock again {again:.2f} ms"
    )


def step_milliseconds(model: nn.Module, batch: Tensor) -> float:
    """Time a training step under bfloat16 autocast, without the optimizer."""

    def step(_: int) -> None:
        with torch.autocast("cuda", BF16):
            loss: Any = model(batch).square().mean()
        loss.backward()
        model.zero_grad()

    return milliseconds(step)


def whole_step() -> str:
    """Time a ViT-size step as it is and with every eligible layer swapped."""
    model, batch = vit(), torch.randn(64, 197, 768, device="cuda")
    stock = step_milliseconds(model, batch)
    undos = [swap(m) for m in model.modules() if type(m) in LAYERS]
    fused = step_milliseconds(model, batch)
    for undo in undos:
        undo()
    again = step_milliseconds(model, batch)
    return (
        f"ViT-Base step, batch 64: stock {stock:.2f} ms, {len(undos)} layers fused {fused:.2f} ms, "
        f"stock again {again:.2f} ms"
    )


def main() -> None:
    """Check parity, then print the table and the whole-step comparison."""
    if not torch.cuda.is_available():
        sys.exit("This benchmark needs a CUDA device: there is none, or torch is a CPU build.")
    for case in CASES:
        check_parity(case, 512)
    print(f"parity: {len(CASES)} cases within twice the stock error against float64")
    bandwidth = copy_bandwidth()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, copy {bandwidth:.0f} GB/s\n")
    print("| layer | shape | dtype | stock ms | torch.compile ms | ours ms | GB/s | of copy |")
    print("|---|---|---|---|---|---|---|---|")
    for case in CASES:
        print(measure(case, bandwidth), flush=True)
        torch.cuda.empty_cache()
    print(f"\n{whole_step()}\n{whole_resnet_step()}")


if __name__ == "__main__":
    main()
