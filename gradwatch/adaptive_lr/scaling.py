"""Multiply the learning rates of an optimizer for one update, and put them back after it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from gradwatch.closures import evaluates_again
from gradwatch.undo import Undo


def refuse(optimizer: object) -> str | None:
    """Say why an optimizer's rate cannot follow the SNR; None where it can.

    Args:
        optimizer: The optimizer that will step.

    Returns:
        The reason with the way out, or None.

    Examples:
        >>> import torch
        >>> weights = [torch.zeros(2, requires_grad=True)]
        >>> refuse(torch.optim.SGD(weights, lr=0.1)) is None
        True
        >>> print(refuse(torch.optim.LBFGS(weights)))
        LBFGS evaluates its closure several times in one step, each time on other weights: one \
SNR cannot stand for all of them. Switch the adaptive rate off for this optimizer.
    """
    name = type(optimizer).__name__
    if evaluates_again(optimizer):
        return (
            f"{name} evaluates its closure several times in one step, each time on other weights: "
            "one SNR cannot stand for all of them. Switch the adaptive rate off for this optimizer."
        )
    if not isinstance(optimizer, Optimizer):
        return f"{name} is no torch.optim.Optimizer, so there is no hook to put its rate back by."
    if any(
        not isinstance(group.get("lr"), float | int | Tensor) for group in optimizer.param_groups
    ):
        return (
            f"{name} has a parameter group without a learning rate, so there is none to multiply."
        )
    return None


def scale_rates(optimizer: Optimizer, factors: Sequence[float]) -> Undo:
    """Multiply each group's rate, in the same tensor where a tensor holds it.

    A factor of exactly 1 leaves its group untouched. Nothing waits for a device.

    Args:
        optimizer: Its groups are changed.
        factors: One factor per group; groups beyond the last keep their rate.

    Returns:
        The undo. It restores the exact rate wherever it is still the one set here; a rate
        that other code has written meanwhile stands.
    """
    undo = Undo()
    groups = optimizer.param_groups
    owners = Counter(id(group["lr"]) for group in groups)
    for group, factor in zip(groups, factors, strict=False):
        rate = group["lr"]
        if factor == 1.0:
            continue
        # Groups built from one default share its tensor, which cannot hold two factors.
        in_place = isinstance(rate, Tensor) and owners[id(rate)] == 1
        undo.add(_scale_in_place(group, factor) if in_place else _replace(group, factor))
    return undo


def _replace(group: dict[str, Any], factor: float) -> Callable[[], None]:
    saved = group["lr"]
    scaled = saved * factor
    group["lr"] = scaled

    def back() -> None:
        if group["lr"] is scaled:
            group["lr"] = saved

    return back


def _scale_in_place(group: dict[str, Any], factor: float) -> Callable[[], None]:
    rate: Tensor = group["lr"]
    saved = rate.detach().clone()
    rate.detach().mul_(factor)
    # Comparing values would wait for the device; the version says who wrote last.
    version = rate._version  # noqa: SLF001

    def back() -> None:
        if group["lr"] is rate and rate._version == version:  # noqa: SLF001
            rate.detach().copy_(saved)

    return back


class PendingRates:
    """The rates of one update that are still to be put back."""

    def __init__(self) -> None:
        self._undo = Undo()

    def apply(self, optimizer: Optimizer, factors: Sequence[float]) -> None:
        """Scale until the optimizer has stepped, or until `restore`.

        Args:
            optimizer: Steps next.
            factors: One factor per group.
        """
        self.restore()
        back = scale_rates(optimizer, factors)
        # The hook stays registered until `restore`: torch walks its dict of hooks while it
        # calls them, and one that leaves in between breaks the walk.
        handle = optimizer.register_step_post_hook(lambda *_: back())
        self._undo.add(handle.remove)
        self._undo.add(back)

    def restore(self) -> None:
        """Put every rate back and take the hook off; safe to call at any time."""
        self._undo()
