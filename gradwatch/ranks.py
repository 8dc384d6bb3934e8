"""What several processes agree on before anyone acts."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")


class Ranks:
    """The processes that train together; one process agrees with itself at no cost.

    Attributes:
        rank: This process.
        count: Number of processes.
        exchanges: How often device flags were exchanged.
    """

    def __init__(self) -> None:
        """Ask torch.distributed once; call again after a process group was made."""
        together = dist.is_available() and dist.is_initialized()
        self.rank = dist.get_rank() if together else 0
        self.count = dist.get_world_size() if together else 1
        self.exchanges = 0

    def worst(self, flag: Tensor) -> Tensor:
        """Give the maximum over all ranks of a device flag; the host does not wait.

        Args:
            flag: Real tensor of any shape, alike on all ranks.
        """
        if self.count > 1:
            self.exchanges += 1
            dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        return flag

    def smallest(self, number: int, device: torch.device) -> int:
        """Give the minimum of a host number over all ranks."""
        if self.count == 1:
            return number
        held = torch.tensor(number, device=device)
        dist.all_reduce(held, op=dist.ReduceOp.MIN)
        return int(held)

    def gather(self, own: T) -> list[T]:
        """Collect one picklable object of each rank, in rank order, on every rank."""
        if self.count == 1:
            return [own]
        collected: list[T | None] = [None] * self.count
        dist.all_gather_object(collected, own)
        return [item for item in collected if item is not None]
