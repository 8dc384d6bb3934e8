"""Recognise norms and activations by what they compute, not by what they are called.

A form is accepted only if it agrees with the module in float64 on probes that tell forms apart:
random weights (``1 + w`` is not ``w``), inputs of size 1e-3 and 1e3 (an epsilon of 1e-5 is not
1e-6), constant rows, large means, outliers; outputs and all gradients.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradwatch.fused._table import LAYERS
from gradwatch.fused.doubles import InDoubles
from gradwatch.fused.runs import bare_copy
from gradwatch.non_finite.capture import rng_preserved

__all__ = [
    "ACTIVATIONS",
    "NormForm",
    "norm_form",
    "norm_reference",
    "recognise_activation",
    "recognise_norm",
]

USUAL_EPSILONS = (1e-5, 1e-6, 1e-8, 1e-12, torch.finfo(torch.float32).eps)
LARGEST_EPSILON = 1e-2
TOLERANCE = 1e-9
BATCH = 3
SIDE = 2
# One that does something else in evaluation is not that form: what is swapped serves there too.
MODES = (True, False)


class NormForm(NamedTuple):
    """What a norm computes.

    Attributes:
        centred: LayerNorm (True) or RMSNorm (False).
        eps: Added to the variance or mean square.
        offset: Added to the weight: 1 in Gemma's.
        dim: The dimension normalised over: -1, or 1 for channels first.
        weight: Name of its scale, empty without one.
        bias: Name of its shift, empty without one.
        promotes: Whether a short input and a float32 weight give a float32 output.
    """

    centred: bool
    eps: float
    offset: float = 0.0
    dim: int = -1
    weight: str = ""
    bias: str = ""
    promotes: bool = True

    @property
    def kind(self) -> str:
        """How it is told."""
        name = "LayerNorm" if self.centred else "RMSNorm"
        first = " over channels first" if self.dim == 1 else ""
        return f"{name}{first}{' of 1 + weight' if self.offset else ''}"


def norm_reference(form: NormForm, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """Compute a form, slowly and obviously.

    Args:
        form: The form.
        x: The input.
        weight: Its scale, of one dimension.
        bias: Its shift.
    """
    if form.centred:
        x = x - x.mean(form.dim, keepdim=True)
    y = x * torch.rsqrt(x.square().mean(form.dim, keepdim=True) + form.eps)
    shape = (-1, *[1] * (x.dim() - 2)) if form.dim == 1 else (-1,)
    if weight is not None:
        y = y * (weight + form.offset).view(shape)
    return y if bias is None else y + bias.view(shape)


def norm_form(module: nn.Module, x: Tensor) -> NormForm | None:
    """Say what norm a module computes: torch's own by type, others by behaviour.

    Args:
        module: The module.
        x: A live input.
    """
    if type(module) in (nn.LayerNorm, nn.RMSNorm):
        own: Any = module
        if len(own.normalized_shape) != 1:
            return None
        eps = own.eps if own.eps is not None else torch.finfo(torch.float32).eps
        weight = "weight" if own.weight is not None else ""
        bias = "bias" if getattr(own, "bias", None) is not None else ""
        return NormForm(type(module) is nn.LayerNorm, eps, weight=weight, bias=bias, promotes=False)
    if type(module) in LAYERS or type(module).__module__.startswith("torch.nn.modules."):
        return None
    return recognise_norm(module, x)


def recognise_norm(module: nn.Module, x: Tensor) -> NormForm | None:
    """Say which norm a module computes.

    Args:
        module: A module without children and buffers.
        x: A live input.

    Returns:
        The form, or ``None`` if it is none that is known.
    """
    parameters = dict(module.named_parameters(recurse=False))
    flat = all(each.dim() == 1 for each in parameters.values())
    if not parameters or len(parameters) > 2 or not flat or x.dim() < 2:  # noqa: PLR2004 - scale, shift
        return None
    # An epsilon in a buffer could change without anyone noticing.
    if next(module.children(), None) is not None or next(module.buffers(), None) is not None:
        return None
    for dim in _dimensions(x, next(iter(parameters.values())).numel()):
        # A module that refuses a probe is no norm over that dimension.
        with contextlib.suppress(Exception):
            form = _recognised(module, x, parameters, dim)
            if form is not None:
                return form
    return None


def _recognised(
    module: nn.Module, x: Tensor, parameters: dict[str, nn.Parameter], dim: int
) -> NormForm | None:
    with rng_preserved(), torch.autocast(x.device.type, enabled=False), torch.enable_grad():
        size = next(iter(parameters.values())).numel()
        twin = bare_copy(module).to("cpu", torch.float64)
        with torch.no_grad():
            for parameter in twin.parameters():
                parameter.copy_(torch.rand(size, dtype=torch.float64) + 0.25)
        names = sorted(parameters, key=lambda name: "bias" in name or "beta" in name)
        probes = list(_probes(x.dim(), dim, size))
        for form in _forms(module, dim, *_two(names)):
            if all(_agrees(form, twin.train(mode), x) for mode in MODES for x in probes):
                return form._replace(promotes=_promotes(module, probes[0]))
        return None


def _two(names: Sequence[str]) -> tuple[str, str]:
    return names[0], names[1] if len(names) > 1 else ""


def _forms(module: nn.Module, dim: int, weight: str, bias: str) -> Iterator[NormForm]:
    kinds = itertools.product((False, True), (0.0, 1.0), _epsilons(module))
    return (NormForm(centred, eps, offset, dim, weight, bias) for centred, offset, eps in kinds)


def _dimensions(x: Tensor, size: int) -> list[int]:
    fits = {-1: x.shape[-1] == size, 1: x.shape[1] == size and x.dim() > 2}  # noqa: PLR2004
    return [dim for dim, fit in fits.items() if fit]


def _epsilons(module: nn.Module) -> list[float]:
    own = [each for each in vars(module).values() if isinstance(each, float)]
    named = [each for each in own if 0 < each <= LARGEST_EPSILON]
    return list(dict.fromkeys([*named, *USUAL_EPSILONS]))


def _probes(rank: int, dim: int, size: int) -> Iterator[Tensor]:
    shape = [BATCH, *[SIDE] * (rank - 2), size]
    if dim == 1:
        shape = [BATCH, size, *[SIDE] * (rank - 2)]
    x = torch.randn(shape, dtype=torch.float64)
    outlier = x.clone()
    outlier.select(dim, 0).mul_(100)
    yield from (x, x * 1e-3, x * 1e3, torch.full_like(x, 3.0), x + 100.0, outlier)


def _agrees(form: NormForm, twin: nn.Module, probe: Tensor) -> bool:
    weight = getattr(twin, form.weight)
    bias = getattr(twin, form.bias) if form.bias else None
    with InDoubles():
        results = [
            _with_gradients(twin.forward(x), x, twin) for x in (probe.clone().requires_grad_(),)
        ]
        x = probe.clone().requires_grad_()
        results.append(_with_gradients(norm_reference(form, x, weight, bias), x, twin))
    return all(
        a.shape == b.shape and torch.allclose(a, b, rtol=TOLERANCE, atol=TOLERANCE * _size(b))
        for a, b in zip(*results, strict=True)
    )


def _size(tensor: Tensor) -> float:
    return float(tensor.abs().max()) + 1e-12


def _with_gradients(y: Tensor, x: Tensor, twin: nn.Module) -> list[Tensor]:
    direction = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)
    return [y.detach(), *torch.autograd.grad(y, [x, *twin.parameters()], direction)]


def _promotes(module: nn.Module, probe: Tensor) -> bool:
    """Tell what comes out where a bfloat16 input meets a float32 weight."""
    twin = bare_copy(module).to("cpu", torch.float32)
    output: Tensor = twin.forward(probe.bfloat16())
    return output.dtype == torch.float32


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
}


def recognise_activation(module: nn.Module) -> str | None:
    """Say which activation a module computes.

    Args:
        module: A module.

    Returns:
        A name out of ``ACTIVATIONS``, or ``None``.

    >>> recognise_activation(nn.GELU(approximate="tanh"))
    'gelu_tanh'
    >>> recognise_activation(nn.Tanh())
    """
    if next(module.parameters(), None) is not None or next(module.children(), None) is not None:
        return None
    try:
        with rng_preserved(), torch.enable_grad():
            results = _row(bare_copy(module).forward)
            for name, known in ACTIVATIONS.items():
                if torch.allclose(results, _row(known), rtol=TOLERANCE, atol=TOLERANCE):
                    return name
    except Exception:  # noqa: BLE001 - whatever is not an activation does with a row of numbers
        return None
    return None


def _row(activation: Callable[[Tensor], Tensor]) -> Tensor:
    """Give values and slopes: near zero, and far out, where a ReLU6 or a clipped GELU ends."""
    near = torch.linspace(-6, 6, 49, dtype=torch.float64)
    x = torch.cat([near, near * 10, near * 1e4]).requires_grad_()
    # A copy: what works in place must not write to a leaf.
    y = activation(x.clone())
    (slope,) = torch.autograd.grad(y.sum(), x)
    return torch.stack([y.detach(), slope])
