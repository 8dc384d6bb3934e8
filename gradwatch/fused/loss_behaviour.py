"""Recognise a softmax cross-entropy by what it computes, not by what it is called.

A form is accepted only if it agrees with the module in float64, output and gradient, on probes that
tell forms apart: large logits, equal ones, sure ones, one row, targets that may be left out (-100,
-1, and the numbers that the module holds), all of them left out. Focal losses, class weights,
penalties on the log-sum-exp, clipped losses and the like agree with no form.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from gradwatch.fused.behaviour import MODES
from gradwatch.fused.doubles import InDoubles
from gradwatch.fused.loss_forms import (
    NEGATIVE,
    REDUCTIONS,
    UNREACHED,
    LossForm,
    loss_reference,
)
from gradwatch.fused.losses import stands_on
from gradwatch.fused.runs import bare_copy
from gradwatch.non_finite.capture import rng_preserved

__all__ = ["loss_form", "recognise_loss"]

USUAL_IGNORED = (-100, -1, 0, 255)
# Marks that no loss means, to see what becomes of a target that is no class.
STRAY = (-2,)
SIDE = 2
FEWEST_ROWS = 4
MOST_NUMBERS = 1 << 16
# For the one probe that holds many rows: all of a thousand classes are its targets.
MANY_NUMBERS = 1 << 20
MANY_ROWS = 1 << 12
TOLERANCE = 1e-9
ROUNDING = 1e-12
LOSS_SCALE = float(1 << 16)


def loss_form(module: nn.Module, args: tuple[Any, ...]) -> LossForm | None:
    """Say what cross-entropy a module computes that is none of torch's own.

    Args:
        module: The module.
        args: Its live inputs.
    """
    if len(args) != 2 or not all(isinstance(each, Tensor) for each in args):  # noqa: PLR2004
        return None
    if type(module).__module__.startswith("torch.nn.modules."):
        return None
    return recognise_loss(module, *args)


def recognise_loss(module: nn.Module, x: Tensor, target: Tensor) -> LossForm | None:
    """Say which softmax cross-entropy a module computes.

    Args:
        module: A module that holds no tensor: class weights are another loss.
        x: Live logits.
        target: Live class indices.

    Returns:
        The form, or ``None`` if it is none that is known.
    """
    indices = target.dtype == torch.int64 and x.is_floating_point() and x.dim() > 1
    if not indices or _holds_tensors(module):
        return None
    for dim in _dimensions(x, target):
        # A module that refuses the plainest probe takes its classes from elsewhere.
        with contextlib.suppress(Exception):
            form = _recognised(module, x, dim)
            if form is not None:
                return form
    return None


def _holds_tensors(module: nn.Module) -> bool:
    held = itertools.chain(module.parameters(), module.buffers())
    own = (value for each in module.modules() for value in vars(each).values())
    return next(held, None) is not None or any(isinstance(value, Tensor) for value in own)


def _dimensions(x: Tensor, target: Tensor) -> list[int]:
    fits = {-1: x.shape[:-1] == target.shape}
    if x.dim() > 2:  # noqa: PLR2004 - of two dimensions the second is the last
        fits[1] = x.shape[:1] + x.shape[2:] == target.shape
    return [dim for dim, fit in fits.items() if fit and x.shape[dim] > 1]


class _Probe(NamedTuple):
    """Logits, targets and the size of what flows back: 0 where there are no gradients."""

    x: Tensor
    target: Tensor
    slope: float = 1.0


class _Twin(NamedTuple):
    """A bare copy in float64, and what it gives for each probe in either mode."""

    module: nn.Module
    x: Tensor
    dim: int

    @property
    def classes(self) -> int:
        return self.x.shape[self.dim]

    def agrees(self, forms: Iterable[LossForm], probes: Iterable[_Probe]) -> list[LossForm]:
        """Keep the forms that give what the module gives, or raise where it does."""
        left = list(forms)
        for mode, probe in itertools.product(MODES, probes):
            if not left:
                break
            own = _result(self.module.train(mode).forward, probe)
            left = [form for form in left if _alike(_result(_computing(form), probe), own, probe)]
        return left


def _recognised(module: nn.Module, x: Tensor, dim: int) -> LossForm | None:
    with rng_preserved(), torch.autocast(x.device.type, enabled=False), torch.enable_grad():
        twin = _Twin(bare_copy(module).to("cpu", torch.float64), x, dim)
        before = stands_on(twin.module)
        numbers = set(_numbers(module))
        marks = list(dict.fromkeys([*_whole(numbers), *USUAL_IGNORED]))
        forms = twin.agrees(_plain_forms(twin, numbers), _plain_probes(twin, marks))
        ways = itertools.product(forms, (None, *marks), NEGATIVE)
        forms = [form._replace(ignore_index=mark, negative=way) for form, mark, way in ways]
        forms = twin.agrees(forms, _marked_probes(twin, [*marks, *STRAY, twin.classes]))
        forms = twin.agrees(forms, _large_probes(twin, marks))
        # What it notes down in itself, somebody reads.
        if not forms or stands_on(twin.module) != before:
            return None
        return forms[0]._replace(promotes=_promotes(twin))


def _numbers(module: nn.Module) -> Iterator[float]:
    for each in module.modules():
        for value in vars(each).values():
            if isinstance(value, int | float) and not isinstance(value, bool):
                yield value


def _whole(numbers: Iterable[float]) -> list[int]:
    return sorted(
        int(each) for each in numbers if float(each).is_integer() and abs(each) < -UNREACHED
    )


def _plain_forms(twin: _Twin, numbers: Iterable[float]) -> Iterator[LossForm]:
    """Give the forms that differ where every target is a class; a mean is told apart later."""
    n = twin.classes
    shares = [share for each in numbers if 0 < each < 1 for share in (each, 1 - each)]
    # Some spread it over the other classes only.
    spread = [share * n / (n - 1) for share in shares if share * n / (n - 1) <= 1]
    for smoothing in (0.0, *shares, *spread):
        for reduction in (*REDUCTIONS, "none"):
            yield LossForm(None, reduction, smoothing, twin.dim, twin.x.dim(), n)


def _plain_probes(twin: _Twin, marks: Iterable[int]) -> Iterator[_Probe]:
    x, target = _logits(twin), _targets(twin, marks)
    sure = torch.zeros_like(x).scatter_(twin.dim, target.unsqueeze(twin.dim), 25.0)
    for each in (x, torch.full_like(x, 3.0), sure, x * 1e3, x * 1e6, x * 1e12):
        yield _Probe(each, target)
    # What leaves out, or evens out, what is not finite.
    yield _Probe(x.clone().fill_(torch.nan).where(_first(x), x), target, slope=0.0)
    # A loss scale is as large; what clips what flows back shows.
    yield _Probe(x[:1], target[:1], slope=LOSS_SCALE)


def _marked_probes(twin: _Twin, marks: Iterable[int]) -> Iterator[_Probe]:
    x, target = _logits(twin), _targets(twin)
    for mark in marks:
        some = target.clone()
        # Not as many in each sample: a mean of means is no mean.
        some.view(-1)[1 : 1 + some.numel() // 2] = mark
        yield _Probe(x, some)
        yield _Probe(x, torch.full_like(target, mark), slope=0.0)
    yield _Probe(x, target)


def _first(x: Tensor) -> Tensor:
    return torch.arange(x.numel()).view_as(x) == 0


def _large_probes(twin: _Twin, marks: Iterable[int]) -> Iterator[_Probe]:
    """Give many rows, also more than a number of the module's: some count the hardest only."""
    most = MANY_NUMBERS // twin.classes
    wanted = {min(max(twin.classes, MANY_ROWS), most), *(1 + n for n in marks if SIDE < n < most)}
    inner = twin.x.dim() - 2
    for rows in sorted(wanted):
        side = int((rows / FEWEST_ROWS) ** (1 / inner)) if inner else 0
        shapes = [[rows // SIDE**inner, *[SIDE] * inner], [FEWEST_ROWS, *[side] * inner]]
        for shape in (each for each in shapes[: 1 + bool(inner)] if min(each) >= SIDE):
            yield _Probe(_logits(twin, shape), _targets(twin, shape=shape), slope=0.0)


def _shape(twin: _Twin) -> list[int]:
    rows = max(FEWEST_ROWS, min(twin.classes, MOST_NUMBERS // twin.classes))
    return [rows, *[SIDE] * (twin.x.dim() - 2)]


def _logits(twin: _Twin, shape: Sequence[int] = ()) -> Tensor:
    shape = [*(shape or _shape(twin)), twin.classes]
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return drawn.movedim(-1, twin.dim).contiguous()


def _targets(twin: _Twin, without: Iterable[int] = (), shape: Sequence[int] = ()) -> Tensor:
    """Spread the targets over the classes, first and last among them, or over most of these."""
    n, shape = twin.classes, list(shape or _shape(twin))
    most = torch.tensor(sorted(set(range(n)) - set(without)) or range(n))
    spread = torch.linspace(0, len(most) - 1, shape[0]).round().long()
    shifts = torch.arange(math.prod(shape[1:])).view(shape[1:])
    return most[(spread.view(-1, *[1] * (len(shape) - 1)) + shifts) % len(most)]


def _computing(form: LossForm) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda x, target: loss_reference(form, x, target)


def _result(compute: Callable[..., Any], probe: _Probe) -> list[Tensor] | None:
    """Give the loss and the gradient of the logits; nothing where it raises."""
    x = probe.x.clone().requires_grad_()
    try:
        # In evaluation there are none: what looks for them does something else there.
        with InDoubles(), torch.set_grad_enabled(probe.slope != 0):
            loss = compute(x, probe.target.clone())
            if probe.slope == 0:
                return [loss.detach()]
            direction = torch.linspace(0.5, 1.5, loss.numel(), dtype=loss.dtype).view_as(loss)
            direction *= probe.slope
            return [loss.detach(), *torch.autograd.grad(loss, x, direction)]
    except Exception:  # noqa: BLE001 - a target that is no class is refused in many ways
        return None


def _alike(form: list[Tensor] | None, own: list[Tensor] | None, probe: _Probe) -> bool:
    if form is None or own is None:
        return form is own
    rounding = ROUNDING * (1 + float(probe.x.nan_to_num().abs().max()))
    bounds = (rounding, TOLERANCE * probe.slope)
    return all(
        a.shape == b.shape and torch.allclose(a, b, TOLERANCE, atol, equal_nan=True)
        for a, b, atol in zip(form, own, bounds, strict=False)
    )


def _promotes(twin: _Twin) -> bool:
    """Tell what comes out where logits are bfloat16."""
    loss: Tensor = twin.module.forward(_logits(twin).bfloat16(), _targets(twin))
    return loss.dtype == torch.float32
