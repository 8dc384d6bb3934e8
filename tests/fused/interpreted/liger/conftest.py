"""Liger's kernels under the interpreter, which lacks two things that they use."""

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

FUNCTIONS: dict[str, tuple[Callable[[Any], Any], tuple[str, ...]]] = {
    "rsqrt": (
        lambda x: 1 / np.sqrt(x),
        ("rms_norm", "layer_norm", "group_norm", "fused_add_rms_norm"),
    ),
    "tanh": (np.tanh, ("geglu",)),
}


def _elementwise(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    import triton.language as tl
    from triton.runtime import interpreter as engine

    def apply(x: Any) -> Any:
        return tl.tensor(engine.interpreter_builder.unary_op(x.handle, function), x.type)

    return apply


@pytest.fixture(autouse=True, scope="session")
def _liger_interpreted() -> Iterator[None]:
    """Give it the device library's functions, and scalars in float32 as a compiled kernel has."""
    import triton.language as tl
    from triton.runtime import interpreter as engine

    convert = engine._implicit_cvt

    def scalar(value: Any) -> Any:
        if not isinstance(value, float):
            return convert(value)
        held = engine.TensorHandle(np.array([value], dtype=np.float32), tl.float32)
        return tl.tensor(held, tl.float32)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "_implicit_cvt", scalar)
        for name, (function, modules) in FUNCTIONS.items():
            for module in modules:
                inside = importlib.import_module(f"liger_kernel.ops.{module}")
                patch.setattr(inside, name, _elementwise(function))
        yield
