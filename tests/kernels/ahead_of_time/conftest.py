"""Compiles what a launch would run, for GPUs that are not there, and reads the machine code.

The launchers themselves are called, on CPU tensors: a stand-in driver says which GPU to compile
for, and every launch becomes a warm-up that keeps the binary. So the tiles, warps and
specialisations under test are those that ship.
"""

import re
import subprocess
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia import __file__ as nvidia
from triton.runtime import driver
from triton.runtime.jit import JITFunction

REGISTERS_PER_SM = 65536
# The same binary comes up in many tests, and a dump takes longer than a compilation.
SASS: dict[str, str] = {}
CUOBJDUMP = Path(nvidia).parent / "bin" / "cuobjdump"


DOUBLES = r"\b(?:D(?:ADD|MUL|FMA|SETP|MNMX)|F2F\.F64\S*|F2F\S*\.F64|MUFU\.\w+64H)\b"


class Binary:
    """What the compiler made of one launch; the machine code is dumped when it is looked at."""

    def __init__(self, compiled: Any, kernel: str, folder: Path) -> None:
        self.kernel = kernel
        self.key: str = compiled.hash
        self.warps: int = compiled.metadata.num_warps
        self._cubin = folder / f"{self.key}.cubin"
        self._cubin.write_bytes(compiled.asm["cubin"])

    @cached_property
    def usage(self) -> dict[str, int]:
        return {k: int(v) for k, v in re.findall(r"(\w+):(\d+)", dump("-res-usage", self._cubin))}

    @property
    def registers(self) -> int:
        return self.usage["REG"]

    @property
    def stack_bytes(self) -> int:
        return self.usage["STACK"]

    @property
    def programs_per_sm(self) -> int:
        # Registers are handed out per warp in units of 256, that is 8 a thread.
        a_thread = -(-self.registers // 8) * 8
        return REGISTERS_PER_SM // (a_thread * 32 * self.warps)

    @property
    def sass(self) -> str:
        if self.key not in SASS:
            SASS[self.key] = dump("-sass", self._cubin)
        return SASS[self.key]

    @property
    def widest_load(self) -> int:
        return self._widest(r"\bLDG\S*")

    @property
    def widest_store(self) -> int:
        return self._widest(r"\bSTG\S*")

    @property
    def doubles(self) -> list[str]:
        return re.findall(DOUBLES, self.sass)

    def _widest(self, instruction: str) -> int:
        found = re.findall(instruction, self.sass)
        widths = [int(w) for i in found for w in re.findall(r"\.(64|128)\b", i)]
        return max(widths, default=32 if found else 0)


def dump(flag: str, cubin: Path) -> str:
    return subprocess.run(
        [str(CUOBJDUMP), flag, str(cubin)], capture_output=True, text=True, check=True
    ).stdout


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


@pytest.fixture
def compiled(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Callable[..., list[Binary]]]:
    """Return a function that runs a call and hands back the binaries of its launches."""
    monkeypatch.setattr("gradwatch.kernels._triton.require", lambda device: None)
    run = JITFunction.run

    def collect(call: Callable[[], object], architecture: int) -> list[Binary]:
        binaries: list[Binary] = []

        def warm_up(self: Any, *args: Any, grid: Any, warmup: bool, **constants: Any) -> None:
            made = run(self, *args, grid=grid, warmup=True, **constants)
            binaries.append(Binary(made, self.fn.__name__, tmp_path))

        driver.set_active(StandInDriver(architecture))
        monkeypatch.setattr(JITFunction, "run", warm_up)
        call()
        return binaries

    yield collect
    driver._active = None
