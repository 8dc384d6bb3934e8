"""The strides that tensors may come in."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

Layouts = dict[str, Callable[[Tensor], Tensor]]
Case = TypeVar("Case")

_STRIDED: Layouts = {
    "every second": lambda x: torch.stack([x, x * 0 + 7], -1).flatten(-2)[..., ::2],
    "transposed": lambda x: x.transpose(-1, -2).contiguous().transpose(-1, -2),
    "offset": lambda x: torch.cat([x.new_ones(3), x.flatten()])[3:].view(x.shape),
}
_EXPANDED: Layouts = {"expanded": lambda x: torch.ones(()).expand(x.shape)}

# Of a tensor of three dimensions, the last of which is worked along.
ROWS: Layouts = {
    "contiguous": lambda x: x,
    **_STRIDED,
    "half of rows": lambda x: torch.cat([x, x * 0 + 7], -1)[..., : x.shape[-1]],
    "channels last": lambda x: x.permute(0, 2, 1).contiguous().permute(0, 2, 1),
}
ROW_GRADIENTS = ROWS | _EXPANDED

# Of a tensor whose second dimension are the channels.
FORMATS: Layouts = {
    "contiguous": lambda x: x.contiguous(),
    "channels last": lambda x: (
        x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x
    ),
}
IMAGES: Layouts = {
    **FORMATS,
    **_STRIDED,
    "every second channel, last": lambda x: FORMATS["channels last"](x.repeat_interleave(2, 1))[
        :, ::2
    ],
}
IMAGE_GRADIENTS = IMAGES | _EXPANDED
# Each layout with one gradient, and each gradient with one layout: interpreting is slow.
IMAGES_AND_GRADIENTS = [
    *((of, "expanded") for of in IMAGES),
    *(("every second", grad) for grad in IMAGES),
]


def in_formats(cases: Sequence[Case], both: int = 3) -> list[tuple[Case, str]]:
    """Give the first cases in both formats, one or the other for the rest: interpreting is slow."""
    return [
        (case, layout)
        for i, case in enumerate(cases)
        for j, layout in enumerate(FORMATS)
        if i < both or (i + j) % 2
    ]
