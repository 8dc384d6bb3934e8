"""Run a function once on copies of its modules and a copied call, and keep all it gives."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from gradwatch.fused.deadline import within
from gradwatch.fused.doubles import InDoubles
from gradwatch.fused.operation import Call, Function, Half
from gradwatch.hooks import tensors_in
from gradwatch.non_finite.capture import rng_preserved

__all__ = ["LAYOUTS", "Layout", "Run", "Spoiled", "bare_copy", "half_set", "run_function"]

HOOKS = (
    "_backward_hooks", "_backward_pre_hooks", "_forward_hooks", "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called", "_forward_pre_hooks", "_forward_pre_hooks_with_kwargs",
)  # fmt: skip


class Spoiled(Exception):  # noqa: N818 - a verdict, not an error
    """A function wrote into a gradient."""


class Layout(NamedTuple):
    """A way to lay a gradient out in memory.

    Attributes:
        name: How it is told.
        lay: Gives the same values in that layout.
        own_reference: Whether the values differ, so that the references must be run again.
    """

    name: str
    lay: Callable[[Tensor], Tensor]
    own_reference: bool = False

    @property
    def told(self) -> str:
        """The clause for a message; empty for the layout of training."""
        return f" (with a gradient that comes {self.name})" if self.name else ""


def _strided(grad: Tensor) -> Tensor:
    wide = grad.new_zeros((*grad.shape, 2))
    wide[..., 0] = grad
    return wide[..., 0]


def _transposed(grad: Tensor) -> Tensor:
    return grad.transpose(0, -1).contiguous().transpose(0, -1) if grad.dim() > 1 else grad


def _expanded(grad: Tensor) -> Tensor:
    # One row for all, not one number: a norm's gradient at a constant one is rounding only.
    return grad[:1].expand(grad.shape) if grad.dim() else grad


LAYOUTS = (
    Layout("", lambda grad: grad),
    Layout("strided", _strided),
    Layout("transposed", _transposed),
    Layout("expanded from one row", _expanded, own_reference=True),
)


class Run(NamedTuple):
    """What one run gave.

    Attributes:
        values: Outputs, gradients, buffers, and inputs that were written into, by name.
        drew: Whether random numbers were drawn.
        wrote: Names of the inputs that were written into.
        rounding: Relative spacing of the type that autocast computes in, 0 where it is off.
    """

    values: dict[str, Tensor]
    drew: bool
    wrote: frozenset[str] = frozenset()
    rounding: float = 0.0


def bare_copy(module: nn.Module) -> nn.Module:
    """Copy a module without its hooks: what the user hung on it must not notice.

    Args:
        module: The module.
    """
    twin = copy.deepcopy(module)
    for each in twin.modules():
        for name in HOOKS:
            vars(each)[name] = type(vars(each)[name])()
        for parameter in each.parameters(recurse=False):
            parameter.grad = None
    return twin


def run_function(
    function: Function,
    members: list[nn.Module],
    call: Call,
    *,
    layout: Layout = LAYOUTS[0],
    double: bool = False,
    limit_seconds: float | None = None,
) -> Run:
    """Run forward and backward on copies.

    Args:
        function: Called with the members, then with the inputs.
        members: Its modules.
        call: The live call.
        layout: How gradients are laid out.
        double: Run in float64 throughout.
        limit_seconds: Leave it behind if it does not come back by then; None waits.

    Returns:
        All that came out.

    Raises:
        DeadlineError: If it did not come back in time.
        Spoiled: If the function wrote into a gradient.
    """
    twins = [bare_copy(each).double() if double else bare_copy(each) for each in members]
    inputs = tuple(_leaf(value, double=double) for value in call.inputs)
    # Not the leaves themselves: those must not be written to in place, and the stock function may.
    with torch.enable_grad():
        given = tuple(x.clone() if isinstance(x, Tensor) else x for x in inputs)
    grads = [None if g is None else layout.lay(g.double() if double else g.clone())
             for g in call.gradients]  # fmt: skip

    def compute() -> dict[str, Tensor]:
        # What is set here belongs to the thread; random state does not, and stays outside.
        with ExitStack() as stack:
            stack.enter_context(half_set(call.half, off=double))
            stack.enter_context(torch.enable_grad())
            if double:
                stack.enter_context(InDoubles())
            outputs = list(tensors_in(function(*twins, *given, **call.kwargs)))
            return _with_gradients(outputs, twins, inputs, grads)

    with rng_preserved():
        call.random.restore()
        before = _drawn(inputs)
        values = within(limit_seconds, compute, _device(inputs)) if limit_seconds else compute()
        drew = any(not torch.equal(a, b) for a, b in zip(before, _drawn(inputs), strict=True))
    if not double:
        _unspoiled(call, grads, layout)
    wrote = _written(inputs, given)
    short = call.half.dtype
    rounding = 0.0 if short is None else torch.finfo(short).eps
    return Run(values | wrote, drew, frozenset(wrote), rounding)


def _written(inputs: tuple[Any, ...], given: tuple[Any, ...]) -> dict[str, Tensor]:
    """Name what was written into, as it is now."""
    pairs = enumerate(zip(inputs, given, strict=True))
    tensors = ((n, x, y.detach()) for n, (x, y) in pairs if isinstance(y, Tensor))
    return {f"input {n}" if n else "input": y for n, x, y in tensors if not _same(x, y)}


def _with_gradients(
    outputs: list[Tensor], twins: list[nn.Module], inputs: tuple[Any, ...],
    grads: list[Tensor | None],
) -> dict[str, Tensor]:  # fmt: skip
    values = {f"output {i}" if i else "output": y.detach() for i, y in enumerate(outputs)}
    wanted = dict(_wanted(twins, inputs))
    pairs = [(y, g) for y, g in zip(outputs, grads, strict=False) if g is not None]
    pairs = [(y, g.to(y.dtype)) for y, g in pairs if y.requires_grad and y.shape == g.shape]
    if wanted and pairs:
        found = torch.autograd.grad(
            [y for y, _ in pairs], list(wanted.values()), [g for _, g in pairs], allow_unused=True
        )
        named = zip(wanted, found, strict=True)
        values |= {f"gradient of {name}": g for name, g in named if g is not None}
    for twin in twins:
        values |= {f"buffer {name}": each for name, each in twin.named_buffers()}
    return values


def _wanted(twins: list[nn.Module], inputs: tuple[Any, ...]) -> Iterator[tuple[str, Tensor]]:
    leaves = [x for x in inputs if isinstance(x, Tensor) and x.requires_grad]
    for number, leaf in enumerate(leaves):
        yield f"input {number}" if number else "the input", leaf
    for number, twin in enumerate(twins):
        for name, parameter in twin.named_parameters():
            if parameter.requires_grad:
                yield f"{name} ({number})" if number else name, parameter


def _leaf(value: Any, *, double: bool) -> Any:  # noqa: ANN401 - any input
    if not isinstance(value, Tensor):
        return value
    twin = value.detach().clone()
    if double and twin.is_floating_point():
        twin = twin.double()
    return twin.requires_grad_(value.requires_grad)


def _unspoiled(call: Call, grads: list[Tensor | None], layout: Layout) -> None:
    for kept, given in zip(call.gradients, grads, strict=True):
        if kept is not None and given is not None and not _same(layout.lay(kept), given):
            raise Spoiled("it writes into the gradient it is given")


def _same(left: Tensor, right: Tensor) -> bool:
    alike = left.detach() == right.detach()
    if left.is_floating_point():
        alike |= left.detach().isnan() & right.detach().isnan()
    return bool(alike.all())


def _device(inputs: tuple[Any, ...]) -> torch.device:
    return next((x.device for x in inputs if isinstance(x, Tensor)), torch.device("cpu"))


def _drawn(inputs: tuple[Any, ...]) -> list[Tensor]:
    states = [torch.get_rng_state()]
    if any(isinstance(x, Tensor) and x.is_cuda for x in inputs):
        states.append(torch.cuda.get_rng_state())
    return states


@contextmanager
def half_set(half: Half, *, off: bool = False) -> Iterator[None]:
    """Set autocast as it was at a call.

    Args:
        half: Autocast at the call.
        off: Leave it off in any case.
    """
    enabled = half.dtype is not None and not off
    with torch.autocast(half.device, dtype=half.dtype or torch.bfloat16, enabled=enabled):
        yield
