"""Batches and generators as tensors and primitives, and back: what ``weights_only`` lets in."""

from __future__ import annotations

from collections import UserDict, namedtuple
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gradwatch.non_finite.rng import RandomState

PRIMITIVES = (bool, int, float, complex, str, type(None))
DEEPEST = 12
# Marks a dictionary that stands for something else; no batch uses it as a key.
KIND = "gradwatch:kind"


class Packer:
    """Turn a value into tensors and primitives, and list what that loses.

    A tensor that is met twice is packed once: changed in place, it changes in both places.

    Attributes:
        lost: A line for each thing that is left out or changed.
    """

    def __init__(self) -> None:
        """Start with nothing packed."""
        self.lost: list[str] = []
        self._packed: dict[int, Tensor] = {}

    def pack(self, value: Any, path: str, depth: int = DEEPEST) -> Any:  # noqa: ANN401 - any batch
        """Pack a value.

        Args:
            value: Anything.
            path: How it is called, for the list of what is lost.
            depth: How many containers deep to go.

        Returns:
            Tensors on the CPU, primitives and plain containers of them.
        """
        if type(value) in PRIMITIVES:
            return value
        if not depth:
            return self._leave_out(value, path)
        pack = next((own for kinds, own in self._kinds() if isinstance(value, kinds)), None)
        return pack(value, path, depth - 1) if pack else self._object(value, path, depth - 1)

    def _kinds(self) -> tuple[tuple[Any, Callable[[Any, str, int], Any]], ...]:
        return (
            (Tensor, self._tensor),
            (np.ndarray, self._array),
            (np.generic, self._number),
            ((Mapping, UserDict), self._mapping),
            ((list, tuple), self._sequence),
        )

    def _tensor(self, value: Tensor, path: str, depth: int) -> Any:  # noqa: ANN401
        del depth
        if id(value) not in self._packed:
            copy = plain_tensor(value)
            if copy is None:
                return self._leave_out(value, path)
            self._packed[id(value)] = copy
        return self._packed[id(value)]

    def _array(self, value: np.ndarray[Any, Any], path: str, depth: int) -> Any:  # noqa: ANN401
        del depth
        try:
            return {KIND: "array", "values": torch.from_numpy(np.array(value))}
        except TypeError:
            return self._leave_out(value, path)

    def _number(self, value: np.generic, path: str, depth: int) -> Any:  # noqa: ANN401
        self.lost.append(f"{path}: {_type(value)}, saved as a plain number")
        return self.pack(value.item(), path, depth)

    def _mapping(self, value: Mapping[Any, Any], path: str, depth: int) -> dict[Any, Any]:
        if type(value) is not dict:
            self.lost.append(f"{path}: {_type(value)}, saved as a plain dict")
        known = {key: inner for key, inner in value.items() if type(key) in PRIMITIVES}
        if len(known) < len(value):
            self.lost.append(f"{path}: {len(value) - len(known)} key(s) of a class, not saved")
        return {key: self.pack(inner, f"{path}[{key!r}]", depth) for key, inner in known.items()}

    def _sequence(self, value: Any, path: str, depth: int) -> Any:  # noqa: ANN401
        if hasattr(value, "_fields"):
            return self._fields("namedtuple", value, value._asdict(), path, depth)
        packed = [self.pack(inner, f"{path}[{i}]", depth) for i, inner in enumerate(value)]
        if type(value) not in {list, tuple}:
            self.lost.append(f"{path}: {_type(value)}, saved as a plain sequence")
        return tuple(packed) if isinstance(value, tuple) else packed

    def _object(self, value: object, path: str, depth: int) -> Any:  # noqa: ANN401
        if is_dataclass(value):
            own = {each.name: getattr(value, each.name) for each in fields(value)}
            return self._fields("fields", value, own, path, depth)
        opaque = isinstance(value, type | nn.Module) or callable(value)
        if opaque or not getattr(value, "__dict__", None):
            return self._leave_out(value, path)
        return self._fields("fields", value, vars(value), path, depth)

    def _fields(
        self, kind: str, value: object, own: Mapping[str, Any], path: str, depth: int
    ) -> dict[str, Any]:
        self.lost.append(f"{path}: {_type(value)}, its fields saved, not its class")
        packed = {name: self.pack(inner, f"{path}.{name}", depth) for name, inner in own.items()}
        return {KIND: kind, "class": type(value).__name__, "values": packed}

    def _leave_out(self, value: object, path: str) -> Any:  # noqa: ANN401 - stands where a value would
        self.lost.append(f"{path}: {_type(value)}, not saved")
        return None


def unpack(value: Any) -> Any:  # noqa: ANN401 - any batch
    """Undo `Packer.pack`; what was of a class comes back as a stand-in with its fields.

    Args:
        value: What was packed.

    Examples:
        >>> packer = Packer()
        >>> unpack(packer.pack({"x": [np.float32(0.5), (1, None)]}, "batch"))
        {'x': [0.5, (1, None)]}
        >>> packer.lost
        ["batch['x'][0]: numpy.float32, saved as a plain number"]
    """
    if isinstance(value, dict):
        if KIND in value:
            return _UNPACKERS[value[KIND]](value)
        return {key: unpack(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(unpack(inner) for inner in value)
    return value


def plain_tensor(value: Tensor) -> Tensor | None:
    """Copy a tensor to the CPU; None where it cannot be written as a plain one.

    A view is copied out of its storage: the storage would be written whole.

    Args:
        value: The tensor.
    """
    if type(value) not in {Tensor, nn.Parameter} or value.is_meta or value.is_quantized:
        return None
    copy = value.detach().cpu()
    if copy.layout is torch.strided and copy.untyped_storage().nbytes() > copy.nbytes:
        return copy.clone()
    return copy


def pack_random(state: RandomState) -> dict[str, Any]:
    """Give the generators' states without NumPy's own types.

    Args:
        state: The states.
    """
    version, words, gauss = state.python
    numpy = {key: value for key, value in state.numpy.items() if key != "state"}
    key, position = state.numpy["state"]["key"], state.numpy["state"]["pos"]
    return {
        "torch": state.torch.clone(),
        "devices": {name: each.clone() for name, each in state.devices.items()},
        "python": [version, torch.tensor(words), gauss],
        "numpy": {**numpy, "key": torch.from_numpy(key.astype(np.int64)), "pos": int(position)},
    }


def unpack_random(plain: Mapping[str, Any]) -> RandomState:
    """Undo `pack_random`; generators of devices are left out: a replay runs on the CPU.

    Args:
        plain: What was packed.
    """
    version, words, gauss = plain["python"]
    numpy = {key: value for key, value in plain["numpy"].items() if key not in {"key", "pos"}}
    key = plain["numpy"]["key"].numpy().astype(np.uint32)
    return RandomState(
        torch=plain["torch"],
        devices={},
        python=(version, tuple(words.tolist()), gauss),
        numpy={**numpy, "state": {"key": key, "pos": plain["numpy"]["pos"]}},
    )


def _named(value: Mapping[str, Any]) -> Any:  # noqa: ANN401 - a class made here
    own = unpack(value["values"])
    return namedtuple(value["class"], list(own))(**own)  # noqa: PYI024 - its fields come from a file


def _type(value: object) -> str:
    kind = type(value)
    home = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    return f"{home}{kind.__qualname__}"


_UNPACKERS: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    "array": lambda value: value["values"].numpy(),
    "namedtuple": _named,
    "fields": lambda value: SimpleNamespace(**unpack(value["values"])),
}
