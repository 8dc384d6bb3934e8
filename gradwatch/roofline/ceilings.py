"""What the machine can do: bandwidth, arithmetic, launches; measured once and remembered.

No table of products: a copy of more than the caches hold, a large matrix product, and the
smallest operations there are, timed on the machine at hand. No random numbers are drawn.
"""

from __future__ import annotations

import contextlib
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from gradwatch.roofline.remembered import recall, remember

REPEATS = 7
UNCOUNTED = 2
LONG_SECONDS = 0.5
COPY_BYTES = {"cpu": 64 << 20, "accelerator": 512 << 20}
MATRIX_SIZES = {"cpu": (512, 1024), "accelerator": (4096, 8192)}
# Most of an accelerator's free memory that is taken, for a moment.
FREE_SHARE = 8
# Longer than this for one product, and a larger one is not tried.
ENOUGH_SECONDS = 0.05
CHAIN = 64


@dataclass(frozen=True, kw_only=True)
class Ceilings:
    """What a device can do, measured.

    Attributes:
        device: Name of the device.
        copy_bytes_per_second: Bytes read plus bytes written by a copy beyond the caches.
        matrix_flops_per_second: dtype (``"float32"``) → rate of a large matrix product.
        launch_seconds: What the smallest operation costs in a forward and a backward, per
            kernel: the floor under each of them.
    """

    device: str
    copy_bytes_per_second: float
    matrix_flops_per_second: Mapping[str, float]
    launch_seconds: float

    def ridge(self, dtype: str = "float32") -> float:
        """Give the intensity (FLOP per byte) at which arithmetic begins to bound.

        Args:
            dtype: One of those measured.

        Examples:
            >>> rates = {"float32": 2e12}
            >>> Ceilings(
            ...     device="toy",
            ...     copy_bytes_per_second=1e11,
            ...     matrix_flops_per_second=rates,
            ...     launch_seconds=1e-6,
            ... ).ridge()
            20.0
        """
        return self.matrix_flops_per_second[dtype] / self.copy_bytes_per_second


def device_name(device: torch.device) -> str:
    """Give a device's name: ``"cpu"`` or what the driver calls it.

    Args:
        device: The device.
    """
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return device.type


def measure_ceilings(
    device: torch.device | str = "cpu",
    dtypes: Sequence[str] = ("float32",),
    *,
    refresh: bool = False,
) -> Ceilings:
    """Measure what a device can do, or recall what was measured before.

    Takes about a second on a CPU. The result is kept in the user's cache folder by device,
    torch version, number of threads and settings that change the rates; what has not been
    measured yet (another dtype) is added to it.

    Args:
        device: The device.
        dtypes: For which the rate of matrix products is wanted, such as ``"bfloat16"``.
        refresh: Measure again, whatever is remembered.

    Returns:
        The ceilings; rates of at least ``dtypes``, those left out that a plain product does not
        take.
    """
    device = torch.device(device)
    key = "|".join(
        [
            # A home folder may be shared by machines whose processors differ.
            platform.node() if device.type == "cpu" else device_name(device),
            torch.__version__,
            f"{torch.get_num_threads()} threads",
            f"float32 products: {torch.get_float32_matmul_precision()}",
        ]
    )
    known = {} if refresh else recall(key)
    with torch.no_grad(), torch.autocast(device.type, enabled=False):
        if "copy" not in known:
            known["copy"] = _copy_rate(device)
        for dtype in dtypes:
            if f"matrix {dtype}" not in known:
                # Some types (float8) have products that a plain one cannot stand for.
                with contextlib.suppress(RuntimeError):
                    known[f"matrix {dtype}"] = _matrix_rate(device, dtype)
    with torch.inference_mode(mode=False), torch.enable_grad():
        if "launch" not in known:
            known["launch"] = _launch_seconds(device)
    remember(key, known)
    return Ceilings(
        device=device_name(device),
        copy_bytes_per_second=known["copy"],
        matrix_flops_per_second={
            name.removeprefix("matrix "): rate
            for name, rate in known.items()
            if name.startswith("matrix ")
        },
        launch_seconds=known["launch"],
    )


def synchronize(device: torch.device) -> None:
    """Wait for a device; nothing on a CPU.

    Args:
        device: The device.
    """
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def _kind(device: torch.device) -> str:
    return "cpu" if device.type == "cpu" else "accelerator"


def _room_bytes(device: torch.device) -> int:
    """Give what may be taken for a moment in the midst of a training."""
    if device.type != "cuda":
        return 1 << 62
    return torch.cuda.mem_get_info(device)[0] // FREE_SHARE


def _copy_rate(device: torch.device) -> float:
    count = min(COPY_BYTES[_kind(device)], _room_bytes(device) // 2) // 4
    source = torch.ones(count, device=device, dtype=torch.float32)
    target = torch.zeros_like(source)
    return 2 * 4 * count / _timed(lambda: target.copy_(source), device)


def _matrix_rate(device: torch.device, dtype: str) -> float:
    best, kind = 0.0, getattr(torch, dtype)
    first, *larger = MATRIX_SIZES[_kind(device)]
    room = _room_bytes(device)
    for size in (first, *(size for size in larger if 2 * size**2 * kind.itemsize <= room)):
        # Not all alike: on some devices the rate hangs on how many bits change.
        left = (torch.arange(size * size, device=device) % 251 / 251).view(size, size).to(kind)
        out = torch.empty_like(left)
        seconds = _timed(partial(torch.mm, left, left, out=out), device)
        best = max(best, 2 * size**3 / seconds)
        if seconds > ENOUGH_SECONDS:
            break
    return best


def _launch_seconds(device: torch.device) -> float:
    start = torch.ones(1, device=device, dtype=torch.float32, requires_grad=True)

    def chain() -> None:
        value: Tensor = start
        for _ in range(CHAIN):
            value = torch.relu(value)
        torch.autograd.grad(value, start)

    return _timed(chain, device) / (2 * CHAIN)


def _timed(call: Callable[[], object], device: torch.device) -> float:
    """Give the shortest length of a call in seconds: a ceiling is what can be, not what is usual.

    The first ones are left out, and a call that takes long is not repeated as often.
    """
    lengths: list[float] = []
    while len(lengths) < REPEATS + UNCOUNTED and (
        len(lengths) <= UNCOUNTED or sum(lengths) < LONG_SECONDS
    ):
        synchronize(device)
        begun = time.perf_counter()
        call()
        synchronize(device)
        lengths.append(time.perf_counter() - begun)
    return min(lengths[UNCOUNTED:])
