"""Numbers of the tensors around a fault: what a rule about causes may look at."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf, isnan, nan

import torch
from torch import Tensor

from gradwatch.non_finite.flags import dense_parts

# Their rows along a dimension share one result: a row that holds only −inf gives none.
ROWWISE = frozenset({"aten::_softmax", "aten::_log_softmax", "aten::logsumexp"})
MOST_TENSORS = 3
HALVES = {"float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, kw_only=True)
class Tally:
    """What one tensor held.

    Attributes:
        shape: Its shape.
        dtype: Its type, such as ``"float32"``.
        low: Smallest finite value; NaN where there is none.
        high: Largest finite value; NaN where there is none.
        zeros: Elements that are exactly 0.
        nan: Elements that are NaN.
        plus_inf: Elements that are +inf.
        minus_inf: Elements that are −inf.
        first_bad: Index of the first element that is not finite; None where all are.
    """

    shape: tuple[int, ...] = ()
    dtype: str = ""
    low: float = nan
    high: float = nan
    zeros: int = 0
    nan: int = 0
    plus_inf: int = 0
    minus_inf: int = 0
    first_bad: tuple[int, ...] | None = None

    @property
    def size(self) -> int:
        """Number of elements."""
        return torch.Size(self.shape).numel()

    @property
    def bad(self) -> int:
        """Number of elements that are not finite."""
        return self.nan + self.plus_inf + self.minus_inf

    @property
    def peak(self) -> float:
        """Largest finite magnitude; NaN where nothing is finite."""
        return max(abs(self.low), abs(self.high))

    @property
    def floating(self) -> bool:
        """True of a type that knows NaN."""
        return "float" in self.dtype or "complex" in self.dtype

    def words(self) -> str:
        """Say it in a few words, NaN and the two infinities apart.

        Examples:
            >>> tally(torch.tensor([[1.0, float("-inf")], [float("nan"), 0.5]])).words()
            'float32 2×2: min -inf, max 1, 1 NaN, 1 -inf'
        """
        low, high = self.extremes()
        counts = ((self.nan, "NaN"), (self.plus_inf, "+inf"), (self.minus_inf, "-inf"))
        told = [f"{count:,} {word}" for count, word in counts if count]
        told = told or ([f"{self.zeros:,} zero"] if self.zeros and self.floating else [])
        if not isnan(low):
            told = [f"min {low:.4g}", f"max {high:.4g}", *told]
        return f"{self.dtype} {shape_words(self.shape)}: {', '.join(told) or 'nothing in it'}"

    def extremes(self) -> tuple[float, float]:
        """Give the smallest and the largest value, infinities counted; NaN without any."""
        known = [] if isnan(self.low) else [self.low, self.high]
        known += [-inf] * (self.minus_inf > 0) + [inf] * (self.plus_inf > 0)
        return min(known, default=nan), max(known, default=nan)


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One operation, looked at.

    Attributes:
        name: Its name, such as ``"aten::sqrt"``; empty where it was not come by.
        inputs: The tensors it read, as they were before it ran.
        outputs: The tensors it gave.
        numbers: The plain numbers among its arguments, in order.
        empty_rows: Rows of −inf a softmax was handed; -1 of any other operation.
    """

    name: str = ""
    inputs: tuple[Tally, ...] = ()
    outputs: tuple[Tally, ...] = ()
    numbers: tuple[float, ...] = ()
    empty_rows: int = -1

    def input(self, place: int) -> Tally:
        """Give an input; one that holds nothing where there are fewer."""
        return self.inputs[place] if place < len(self.inputs) else Tally()

    @property
    def output(self) -> Tally:
        """The first output that is not finite, else the first, else one that holds nothing."""
        first = next(iter(self.outputs), Tally())
        return next((each for each in self.outputs if each.bad), first)

    @property
    def max_input(self) -> float:
        """Largest finite magnitude that went in; NaN where there was none."""
        peaks = (each.peak for each in self.inputs if each.floating)
        return max((peak for peak in peaks if not isnan(peak)), default=nan)

    def lost_number(self) -> float | None:
        """Give a small number that vanished, or a bound that became 1, in the result's type.

        Examples:
            >>> Seen(outputs=(Tally(dtype="float16"),), numbers=(1e-8,)).lost_number()
            1e-08
        """
        kind = HALVES.get(self.output.dtype)
        if kind is None:
            return None
        edges = (0.0, 1.0, -1.0)
        rounded = ((number, float(torch.tensor(number, dtype=kind))) for number in self.numbers)
        return next((was for was, is_ in rounded if was not in edges and is_ in edges), None)


NOTHING = Seen()


def tally(tensor: Tensor) -> Tally:
    """Count what a dense tensor holds; waits for the device.

    Args:
        tensor: Dense and strided; a complex one is looked at part by part.

    Returns:
        Its numbers.
    """
    plain = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    shape, dtype = tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")
    if plain.dtype is torch.bool or plain.numel() == 0:
        zeros = plain.numel() - int(plain.count_nonzero())
        return Tally(shape=shape, dtype=dtype, zeros=zeros)
    # The types of one byte know neither comparisons nor extremes.
    plain = plain.float() if plain.is_floating_point() and plain.element_size() == 1 else plain
    finite = torch.isfinite(plain)
    known = plain[finite] if plain.dim() else plain.reshape(-1)[finite.reshape(-1)]
    low, high = map(float, known.aminmax()) if known.numel() else (nan, nan)
    bad = (~finite).nonzero()
    return Tally(
        shape=shape,
        dtype=dtype,
        low=low,
        high=high,
        zeros=int((plain == 0).sum()),
        nan=int(plain.isnan().sum()),
        plus_inf=int((plain == inf).sum()),
        minus_inf=int((plain == -inf).sum()),
        first_bad=tuple(bad[0, : tensor.dim()].tolist()) if len(bad) else None,
    )


def tallies(arguments: Iterable[object]) -> tuple[Tally, ...]:
    """Count what the tensors among some arguments hold, in order."""
    tensors = (each.detach() for each in arguments if isinstance(each, Tensor))
    return tuple(_bounded_tally(part) for tensor in tensors for part in dense_parts(tensor))


def _bounded_tally(part: Tensor) -> Tally:
    try:
        return tally(part)
    except torch.OutOfMemoryError:
        # Less evidence is better than none: the fault is known without these numbers.
        return Tally(shape=tuple(part.shape), dtype=str(part.dtype).removeprefix("torch."))


def numbers_in(arguments: Iterable[object]) -> tuple[float, ...]:
    """Pick the plain numbers among some arguments, in order."""
    numeric = (each for each in arguments if isinstance(each, float | int))
    return tuple(float(each) for each in numeric if not isinstance(each, bool))


def empty_rows(name: str, arguments: Sequence[object]) -> int:
    """Count the rows of −inf that a softmax was handed; -1 for any other operation."""
    scores = next((each for each in arguments if isinstance(each, Tensor)), None)
    dims = [each for each in arguments if isinstance(each, int) and not isinstance(each, bool)]
    if name not in ROWWISE or scores is None or not dims or not scores.dim():
        return -1
    return int((scores == -inf).all(dims[0]).sum())


def shape_words(shape: Sequence[int]) -> str:
    """Write a shape as ``"32×8"``.

    Examples:
        >>> shape_words((32, 8)), shape_words(())
        ('32×8', 'scalar')
    """
    return "×".join(map(str, shape)) or "scalar"


def bare(name: str) -> str:
    """Strip namespace and the sign of an operation in place.

    Examples:
        >>> bare("aten::sqrt_"), bare("aten::_softmax")
        ('sqrt', '_softmax')
    """
    return name.rpartition("::")[2].rstrip("_")


def words_of(sights: Sequence[Tally]) -> str:
    """Say what several tensors held, the bad ones first."""
    floating = sorted((each for each in sights if each.floating), key=lambda each: not each.bad)
    return "; ".join(each.words() for each in floating[:MOST_TENSORS])
