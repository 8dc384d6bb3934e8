"""What a profile said of the layers that a change concerns, in a few words for its row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from gradwatch.roofline.verdicts import LayerVerdict, VerdictKind

__all__ = ["Diagnosis"]

Verdicts = list[LayerVerdict]
THOUSAND = 1000


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """What bounds each layer; empty where no profile was taken.

    Attributes:
        verdicts: By layer.
        copy_bytes_per_second: The machine's measured bandwidth.
        step_seconds: Length of a profiled step.
    """

    verdicts: Mapping[str, LayerVerdict] = field(default_factory=dict)
    copy_bytes_per_second: float = 0.0
    step_seconds: float = 0.0

    def of(self, layers: Iterable[str]) -> Verdicts:
        """Give the verdicts of layers, those that have one.

        Args:
            layers: Their names.
        """
        return [self.verdicts[name] for name in layers if name in self.verdicts]

    def share(self, layers: Iterable[str]) -> float:
        """Give the share of a step that layers take, forward and backward.

        Args:
            layers: Their names.
        """
        taken = sum(_seconds(each) for each in self.of(layers))
        return taken / self.step_seconds if self.step_seconds > 0 else 0.0

    def say(self, layers: Iterable[str]) -> str:
        """Say what bounds layers, with the figures; empty where no profile tells.

        Args:
            layers: Their names, each once.

        >>> Diagnosis().say(["blocks.0.norm"])
        ''
        """
        kinds: dict[VerdictKind, Verdicts] = {}
        for each in self.of(layers):
            kinds.setdefault(each.kind, []).append(each)
        longest = sorted(kinds.items(), key=lambda item: -sum(map(_seconds, item[1])))
        return "; ".join(self._words(kind, found, alone=len(kinds) == 1) for kind, found in longest)

    def _words(self, kind: VerdictKind, found: Verdicts, *, alone: bool) -> str:
        figures = ", ".join(self._figures(kind, found))
        counted = kind if alone else f"{kind} ({len(found)})"
        return f"{counted}, {figures}" if figures else counted

    def _figures(self, kind: VerdictKind, found: Verdicts) -> Iterator[str]:
        seconds = sum(map(_seconds, found))
        if kind == "bandwidth-bound" and seconds > 0:
            rate = sum(each.moved_bytes for each in found) / seconds
            yield f"{_short(rate / 1e9)} of {_short(self.copy_bytes_per_second / 1e9)} GB/s"
        elif kind == "compute-bound" and seconds > 0:
            yield f"{_short(sum(each.flops for each in found) / seconds / 1e9)} GFLOP/s"
        elif kind == "launch-bound":
            kernels = sum(each.kernels for each in found)
            yield f"{kernels:,.0f} kernels in {_short(seconds * 1e3)} ms"


def _seconds(verdict: LayerVerdict) -> float:
    return verdict.forward_seconds + verdict.backward_seconds


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= THOUSAND else f"{value:.3g}"
