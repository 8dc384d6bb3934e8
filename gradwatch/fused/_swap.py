"""Put a fused forward in the place of a stock one, and take it back."""

from types import MethodType

from torch import nn

from gradwatch.errors import ConfigurationError
from gradwatch.fused._checks import refuse_module
from gradwatch.fused._table import LAYERS
from gradwatch.undo import Undo, patch_instance

__all__ = ["swap"]


def swap(module: nn.Module) -> Undo:
    """Replace a module's forward by the fused one; nothing else of the module changes.

    Parameters, names, state_dict keys, hooks and flags stay. A module-level function is bound on
    the instance: so the module deep-copies with its own weights, pickles, and comes out of the
    pickle with the stock forward. A call the kernel cannot take goes the stock way.

    Args:
        module: A stock layer that is in the table of fused layers.

    Returns:
        The way back to the stock forward.

    Raises:
        ConfigurationError: If the module has no fused forward or cannot take it.

    >>> from gradwatch.fused import swap
    >>> layer = nn.LayerNorm(8)
    >>> undo = swap(layer)
    >>> "forward" in vars(layer)
    True
    >>> undo()
    >>> "forward" in vars(layer)
    False
    """
    name = type(module).__name__
    layer = LAYERS.get(type(module))
    if layer is None:
        known = ", ".join(sorted(stock.__name__ for stock in LAYERS))
        raise ConfigurationError(f"{name} has no fused forward; these have: {known}.")
    if (reason := refuse_module(module, layer.stock)) is not None:
        raise ConfigurationError(f"{name} keeps its forward: {reason}.")
    return patch_instance(module, "forward", MethodType(layer.forward, module))
