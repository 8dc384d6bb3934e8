"""Who offers fused functions: the bundled kernels, torch's own, Liger-Kernel, and yours."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn
from torch.nn import functional as F

from gradwatch.errors import ConfigurationError, one_of
from gradwatch.fused import _batch_norm, _linear, _norms
from gradwatch.fused._checks import refuse_call
from gradwatch.fused._gated import gated_eligible, geglu, swiglu
from gradwatch.fused._group_norm import group_norm_silu
from gradwatch.fused._group_norm import refuse as refuse_group_norm
from gradwatch.fused._table import LAYERS
from gradwatch.fused.losses import fused_cross_entropy, fused_loss, refuse_loss, torch_loss
from gradwatch.fused.norms import fused_add_norm, fused_norm, refuse_add_norm, torch_norm
from gradwatch.fused.operation import Function
from gradwatch.fused.site import Pattern, Site

__all__ = ["PROVIDERS", "Bundled", "Offer", "Pattern", "Provider", "Site", "TorchFused", "resolve"]

Offer = Function | str | None


@runtime_checkable
class Provider(Protocol):
    """Offers a fused function for a place in a model.

    Attributes:
        name: How it is told; unique among the providers of a trial.
    """

    name: str

    def propose(self, site: Site) -> Offer:
        """Offer a function for a place.

        For a module by itself it becomes the module's ``forward``: its first argument is the
        module; take weights from it, and the module still copies and pickles.

        Args:
            site: The place.

        Returns:
            A function called with the members, then with the inputs; a sentence that says why this
            place is refused; or ``None`` for a place it knows nothing of.
        """


class Bundled:
    """The kernels that come with this package."""

    name = "gradwatch"

    def propose(self, site: Site) -> Offer:
        """Offer a kernel where one fits the live inputs."""
        offer: Offer = _BUNDLED[site.pattern](site)
        return offer


_LEFT_ALONE: Mapping[type[nn.Module], str] = MappingProxyType(
    {
        nn.Dropout: "another mask would be another training",
        nn.SyncBatchNorm: "its statistics are summed over devices, which no kernel here does",
    }
)


def _module(site: Site) -> Offer:
    module, layer = site.members[0], LAYERS.get(type(site.members[0]))
    if type(module) in _LEFT_ALONE:
        return _LEFT_ALONE[type(module)]
    # A Sequential's pairs are found as chains.
    if layer is None or isinstance(module, nn.Sequential):
        return None
    return layer.eligible(module, *site.inputs) or layer.forward


def _norm(site: Site) -> Offer:
    if site.norm is None:
        return None
    return _refuse_form(site) or fused_norm(site.norm)


def _add_norm(site: Site) -> Offer:
    if site.norm is None:
        return None
    return refuse_add_norm(site.norm, site.members[0], *site.inputs) or fused_add_norm(site.norm)


def _refuse_form(site: Site) -> str | None:
    form, x = site.norm, site.inputs[0]
    if form is None:
        return "no norm was recognised"
    weight, bias = (_parameter(site.members[0], name) for name in (form.weight, form.bias))
    rows = x.movedim(form.dim, -1)
    # The weight's type is settled by the form: hand-written norms mix types in their own ways.
    alike = None if weight is None else weight.to(x.dtype)
    return _norms.refuse_norm(rows, rows.shape[-1:], alike, bias)


def _parameter(module: nn.Module, name: str) -> Tensor | None:
    return getattr(module, name) if name else None


def _gate(site: Site) -> Offer:
    reason = gated_eligible(*site.inputs)
    if reason is not None:
        return reason
    return {
        "silu": _swiglu,
        "gelu": _geglu,
        "gelu_tanh": _geglu_tanh,
    }.get(site.activation)


def _swiglu(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up if gated_eligible(gate, up) else swiglu(gate, up)


def _geglu(gate: Tensor, up: Tensor) -> Tensor:
    return F.gelu(gate) * up if gated_eligible(gate, up) else geglu(gate, up)


def _geglu_tanh(gate: Tensor, up: Tensor) -> Tensor:
    if gated_eligible(gate, up):
        return F.gelu(gate, approximate="tanh") * up
    return geglu(gate, up, approximate="tanh")


def _linear_act(site: Site) -> Offer:
    (linear,), (x,) = site.members, site.inputs
    if site.activation not in _LINEAR:
        return None
    if site.activation != "relu" and getattr(linear, "bias", None) is None:
        return "without a bias there is nothing to fuse with GELU"
    return _linear.refuse_input(linear, x) or _LINEAR[site.activation]


def _linear_relu(linear: nn.Linear, x: Tensor) -> Tensor:
    if _linear.refuse_input(linear, x) is not None:
        return F.relu(F.linear(x, linear.weight, linear.bias))
    return _linear.linear_relu(x, linear.weight, linear.bias)


def _linear_gelu(linear: nn.Linear, x: Tensor) -> Tensor:
    if _linear.refuse_input(linear, x) is not None:
        return F.gelu(F.linear(x, linear.weight, linear.bias))
    return _linear.linear_gelu(x, linear.weight, linear.bias)


def _linear_gelu_tanh(linear: nn.Linear, x: Tensor) -> Tensor:
    if _linear.refuse_input(linear, x) is not None:
        return F.gelu(F.linear(x, linear.weight, linear.bias), approximate="tanh")
    return _linear.linear_gelu(x, linear.weight, linear.bias, approximate="tanh")


_LINEAR = {"relu": _linear_relu, "gelu": _linear_gelu, "gelu_tanh": _linear_gelu_tanh}


def _batch_norm_act(site: Site) -> Offer:
    norm: Any = site.members[0]
    x, *residual = site.inputs
    if site.activation != "relu":
        return None
    if residual and (residual[0].shape, residual[0].dtype) != (x.shape, x.dtype):
        return "what is added is not like the norm's input"
    reason = _batch_norm.refuse(norm, x) or (refuse_call(*residual) if residual else None)
    return reason or (_batch_norm.forward_add_relu if residual else _batch_norm.forward_relu)


def _group_norm_act(site: Site) -> Offer:
    norm: Any = site.members[0]
    (x,) = site.inputs
    if site.activation != "silu":
        return None
    return refuse_group_norm(norm, x) or _group_norm_silu


def _group_norm_silu(norm: nn.GroupNorm, x: Tensor) -> Tensor:
    if refuse_group_norm(norm, x) is not None:
        return F.silu(nn.GroupNorm.forward(norm, x))
    from gradwatch.fused._checks import autocast_dtype

    dtype = autocast_dtype(x)
    return group_norm_silu(x, norm.num_groups, norm.weight, norm.bias, norm.eps, dtype=dtype)


def _loss(site: Site) -> Offer:
    if site.loss is None:
        return None
    make = fused_loss if site.pattern == "loss" else fused_cross_entropy
    return refuse_loss(site.loss, site.inputs) or make(site.loss)


_BUNDLED: Mapping[Pattern, Any] = MappingProxyType(
    {
        "module": _module,
        "norm": _norm,
        "add → norm": _add_norm,
        "gate": _gate,
        "Linear → act": _linear_act,
        "BatchNorm2d → act": _batch_norm_act,
        "BatchNorm2d → add → act": _batch_norm_act,
        "GroupNorm → act": _group_norm_act,
        "loss": _loss,
        "cross-entropy": _loss,
    }
)


class TorchFused:
    """Torch's own norms and cross-entropy in the place of those written out in Python."""

    name = "torch"

    def propose(self, site: Site) -> Offer:
        """Offer ``torch.nn.functional``'s norm or loss for one written by hand."""
        if site.pattern == "loss" and site.loss is not None:
            return torch_loss(site.loss)
        if site.pattern != "norm" or site.norm is None:
            return None
        return torch_norm(site.norm)


def resolve(named: Sequence[str | Provider]) -> tuple[Provider, ...]:
    """Give the providers that names stand for, and the others as they are.

    Args:
        named: Names out of ``PROVIDERS``, or providers. Liger-Kernel is left out where it is not
            installed.

    Raises:
        ConfigurationError: If a name is unknown, two are the same, one is no provider, or a name
            stands alone.

    >>> [each.name for each in resolve(("torch", "gradwatch"))]
    ['torch', 'gradwatch']
    """
    if isinstance(named, str):
        raise ConfigurationError(f"providers is a sequence; got {named!r}: write ({named!r},)")
    chosen = [_provider(each) for each in named]
    present = tuple(each for each in chosen if each is not None)
    names = [each.name for each in present]
    if len(set(names)) < len(names):
        raise ConfigurationError(f"two providers have one name: {', '.join(sorted(names))}")
    return present


def _provider(named: str | Provider) -> Provider | None:
    if not isinstance(named, str):
        if not isinstance(named, Provider):
            raise ConfigurationError(
                f"a provider has a name and a method propose(site); got {named!r}"
            )
        return named
    one_of("providers", named, PROVIDERS)
    if named == "liger":
        return _liger()
    return Bundled() if named == "gradwatch" else TorchFused()


def _liger() -> Provider | None:
    if importlib.util.find_spec("liger_kernel") is None:
        return None
    from gradwatch.fused.liger import Liger

    return Liger()


PROVIDERS = ("gradwatch", "torch", "liger")
"""Names of those that are tried by default."""
