"""Compiles what a launch would run, for GPUs that are not there, and reads the machine code.

The launchers themselves are called, on CPU tensors: a stand-in driver says which GPU to compile for,
and every launch becomes a warm-up that keeps the binary. So the tiles, warps and specialisations
under test are those that ship.
"""

import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia import __file__ as nvidia
from triton.runtime import driver
from triton.runtime.jit import JITFunction

ARCHITECTURES = (80, 90)
REGISTERS_PER_SM = 65536
CUOBJDUMP = Path(nvidia).parent / "bin" / "cuobjdump"


class Binary(NamedTuple):
    """What the compiler made of one launch."""

    kernel: str
    architecture: int
    registers: int
    stack_bytes: int
    warps: int
    sass: str

    @property
    def programs_per_sm(self) -> int:
        # Registers are handed out per warp in units of 256, that is 8 a thread.
        a_thread = -(-self.registers // 8) * 8
        return REGISTERS_PER_SM // (a_thread * 32 * self.warps)

    @property
    def widest_load(self) -> int:
        return self._widest(r"\bLDG\S*")

    @property
    def widest_store(self) -> int:
        return self._widest(r"\bSTG\S*")

    @property
    def doubles(self) -> list[str]:
        return re.findall(r"\b(?:D(?:ADD|MUL|FMA|SETP|MNMX)|F2F\.F64\S*|F2F\S*\.F64|MUFU\.\w+64H)\b", self.sass)

    def _widest(self, instruction: str) -> int:
        found = re.findall(instruction, self.sass)
        widths = [int(w) for i in found for w in re.findall(r"\.(64|128)\b", i)]
        return max(widths, default=32 if found else 0)


class StandInDriver:
    """As much of a driver as compiling takes; devices are numbered by their architecture."""

    def __init__(self, architecture: int) -> None:
        self.architecture = architecture

    def get_current_device(self) -> int:
        return self.architecture

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.architecture, 32)


def inspect(compiled: Any, name: str, architecture: int, folder: Path) -> Binary:
    cubin = folder / f"{name}.cubin"
    cubin.write_bytes(compiled.asm["cubin"])
    usage, sass = (_dump(flag, cubin) for flag in ("-res-usage", "-sass"))
    ((registers, stack),) = re.findall(r"REG:(\d+) STACK:(\d+)", usage)
    return Binary(name, architecture, int(registers), int(stack), compiled.metadata.num_warps, sass)


def _dump(flag: str, cubin: Path) -> str:
    return subprocess.run(
        [str(CUOBJDUMP), flag, str(cubin)], capture_output=True, text=True, check=True
    ).stdout


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., list[Binary]]]:
    """Return a function that runs a call and hands back the binaries of its launches."""
    monkeypatch.setattr("gradwatch.kernels._triton.require", lambda device: None)
    run = JITFunction.run

    def collect(call: Callable[[], object], architecture: int) -> list[Binary]:
        binaries: list[Binary] = []

        def warm_up(self: Any, *args: Any, grid: Any, warmup: bool, **constants: Any) -> None:
            made = run(self, *args, grid=grid, warmup=True, **constants)
            binaries.append(inspect(made, self.fn.__name__, architecture, tmp_path))

        driver.set_active(StandInDriver(architecture))
        monkeypatch.setattr(JITFunction, "run", warm_up)
        call()
        return binaries

    yield collect
    driver._active = None
