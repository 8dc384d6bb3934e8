"""Layers and their names: which parameter belongs where, and in what order they run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim import Optimizer

from gradwatch.errors import ConfigurationError, nearest
from gradwatch.findings import ROOT

WRAPPERS = frozenset({"_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module"})
PARAMETRIZED = "parametrizations"
OUTSIDE = "<outside the model>"


def clean_name(name: str) -> str:
    """Give a module's name as the user wrote it.

    Wrappers put in by compilation, checkpointing and sharding are left out; a
    parametrization belongs to the module whose tensor it computes.

    Args:
        name: A name out of ``named_modules()``.

    Returns:
        The cleaned name; ``<root>`` for the model itself.

    Examples:
        >>> clean_name("net._orig_mod.0")
        'net.0'
        >>> clean_name("op.parametrizations.weight")
        'op'
        >>> clean_name("")
        '<root>'
    """
    parts = [part for part in name.split(".") if part not in WRAPPERS]
    if PARAMETRIZED in parts:
        parts = parts[: parts.index(PARAMETRIZED)]
    return ".".join(parts) or ROOT


def clean_parameter_name(name: str) -> str:
    """Give a parameter's name as the user wrote it.

    Args:
        name: A name out of ``named_parameters()``.

    Returns:
        The cleaned name.

    Examples:
        >>> clean_parameter_name("op.parametrizations.weight.original0")
        'op.weight.original0'
        >>> clean_parameter_name("op.parametrizations.weight.original")
        'op.weight'
    """
    parts = [part for part in name.split(".") if part not in WRAPPERS]
    if PARAMETRIZED in parts:
        parts.remove(PARAMETRIZED)
        if parts[-1] == "original":
            parts.pop()
    return ".".join(parts)


def unwrapped(name: str) -> str:
    """Give a tensor's name without what compilation, checkpointing and sharding put in.

    Args:
        name: A name out of ``named_parameters()`` or ``named_buffers()``.

    Examples:
        >>> unwrapped("net._orig_mod.0.parametrizations.weight.original0")
        'net.0.parametrizations.weight.original0'
    """
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)


def kinds_of(model: nn.Module) -> dict[str, str]:
    """Give what layers share with their like: experts, and blocks, of one list or of one class.

    Args:
        model: The model, unwrapped.

    Returns:
        Module → its name with a star for each number that tells it from its like.

    Examples:
        >>> experts = nn.ModuleDict({"experts": nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])})
        >>> kinds_of(experts)["experts.1"], kinds_of(nn.Sequential(nn.Linear(2, 2)))["0"]
        ('experts.*', '0')
    """
    kinds = {"": ""}
    for raw, module in model.named_modules():
        for key, child in module.named_children():
            own = "*" if key.isdigit() and _is_one_of_many(module, child) else key
            kinds[f"{raw}.{key}" if raw else key] = f"{kinds[raw]}.{own}" if kinds[raw] else own
    return {clean_name(name): clean_name(kind) for name, kind in kinds.items()}


def _is_one_of_many(parent: nn.Module, child: nn.Module) -> bool:
    """Tell an expert or a block from the unlike steps of an `nn.Sequential`."""
    if isinstance(parent, nn.ModuleList):
        return True
    is_block = next(child.children(), None) is not None
    like = (other for other in parent.children() if type(other) is type(child))
    return is_block and any(other is not child for other in like)


def is_compiled(model: nn.Module) -> bool:
    """Ask whether any part of a model is compiled.

    Args:
        model: The model.
    """
    return any(
        "_orig_mod" in module._modules or module._compiled_call_impl is not None
        for module in model.modules()
    )


def unwrap(model: nn.Module) -> nn.Module:
    """Give the module the user wrote: without data-parallel and compile wrappers.

    Args:
        model: A module, perhaps wrapped.

    Returns:
        The innermost module.
    """
    while True:
        if isinstance(model, DataParallel | DistributedDataParallel):
            model = model.module
        elif "_orig_mod" in model._modules:
            model = model._modules["_orig_mod"] or model
        else:
            return model


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A module that owns parameters directly.

    Attributes:
        name: Its name as the user wrote it.
        module: The module itself (the parametrized one, where it is parametrized).
        parameters: Names of the parameters it owns.
    """

    name: str
    module: nn.Module
    parameters: tuple[str, ...]


class LayerMap:
    """Which layers a model has and which layer each parameter belongs to.

    Tied parameters belong to the first name. Parameters the model does not hold
    (a loss with weights of its own, say) belong to ``<outside the model>``.

    Args:
        model: The model, unwrapped.
    """

    def __init__(self, model: nn.Module) -> None:
        """Walk the model once."""
        self.parameter_names: dict[nn.Parameter, str] = {}
        self._owner: dict[nn.Parameter, str] = {}
        found: dict[str, tuple[nn.Module, list[str]]] = {}
        modules = dict(model.named_modules())
        first = {clean_name(name): module for name, module in reversed(modules.items())}
        for raw, module in modules.items():
            for own, parameter in module._parameters.items():
                if parameter is None or parameter in self._owner:
                    continue
                name = clean_name(raw)
                full = clean_parameter_name(f"{raw}.{own}" if raw else own)
                self._owner[parameter], self.parameter_names[parameter] = name, full
                found.setdefault(name, (first[name], []))[1].append(full)
        self.layers = tuple(
            Layer(name=name, module=module, parameters=tuple(names))
            for name, (module, names) in found.items()
        )

    @property
    def names(self) -> tuple[str, ...]:
        """Layer names in registration order."""
        return tuple(layer.name for layer in self.layers)

    @property
    def owners(self) -> Mapping[nn.Parameter, str]:
        """Parameter → name of its layer."""
        return self._owner

    def owner(self, parameter: nn.Parameter) -> str:
        """Give the name of the layer a parameter belongs to."""
        return self._owner.get(parameter, OUTSIDE)

    def name(self, parameter: nn.Parameter) -> str:
        """Give a parameter's name."""
        return self.parameter_names.get(parameter, OUTSIDE)


def execution_order(names: Sequence[str], called: Iterable[str]) -> tuple[str, ...]:
    """Order layers as they ran; those never called stand behind their registered neighbour.

    Args:
        names: All layers in registration order.
        called: Layers in the order of their first call.

    Returns:
        Every name of ``names`` once.

    Examples:
        >>> execution_order(["head", "attn", "attn.out", "embed"], ["embed", "attn", "head"])
        ('embed', 'attn', 'attn.out', 'head')
    """
    known = set(names)
    order = [name for name in dict.fromkeys(called) if name in known]
    if not order:
        return tuple(names)
    placed, before = set(order), ""
    behind: dict[str, list[str]] = {}
    for name in names:
        if name in placed:
            before = name
        else:
            behind.setdefault(before, []).append(name)
    first = behind.get("", [])
    return (*first, *(each for name in order for each in (name, *behind.get(name, []))))


def match(option: str, patterns: Sequence[str], names: Sequence[str]) -> frozenset[str]:
    """Select layer names by shell patterns.

    Args:
        option: The option's name, for the error.
        patterns: Patterns such as ``"encoder.*"``.
        names: Names to choose from.

    Returns:
        The names that match at least one pattern.

    Raises:
        ConfigurationError: If a pattern matches nothing, though there are names.
    """
    chosen: set[str] = set()
    # A model without parameters has nothing to name: that is no slip of the pen.
    for pattern in patterns if names else ():
        hits = {name for name in names if fnmatchcase(name, pattern)}
        if not hits:
            message = f"{option}: {pattern!r} matches no layer ({nearest(pattern, names)})"
            raise ConfigurationError(message)
        chosen |= hits
    return frozenset(chosen)


def flattened(optimizer: Optimizer) -> tuple[list[nn.Parameter], list[int]]:
    """Give an optimizer's parameters in the order of its groups, each with its group's number."""
    parameters: list[nn.Parameter] = []
    group: list[int] = []
    for number, held in enumerate(optimizer.param_groups):
        parameters += held["params"]
        group += [number] * len(held["params"])
    return parameters, group
