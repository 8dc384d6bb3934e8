"""Trials on a card: kernels compile, agree, are timed there, and leave the training as it was."""

import pytest
import torch
from torch import nn

from gradwatch.fused.providers import Bundled
from tests.fused.lab import Net, loss_of, run_trial

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def halved(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    with torch.autocast("cuda", dtype=torch.bfloat16):
        return loss_of(model, batch)


@pytest.mark.parametrize("mixed", [False, True], ids=["float32", "bfloat16 autocast"])
def test_the_bundled_kernels_agree_on_live_data(mixed: bool) -> None:
    torch.manual_seed(0)
    model = Net(width=256).cuda()
    batch = torch.randn(4096, 256, device="cuda"), torch.randint(0, 3, (4096,), device="cuda")
    options = {"loss": halved} if mixed else {}
    result = run_trial(model, [Bundled()], batch, mode="force", **options)
    told = {(row.kind, row.verdict) for row in result.rows}
    assert told == {
        ("Linear → gelu", "kept"), ("LayerNorm", "kept"),
        # The step calls it as a function.
        ("cross-entropy", "refused"),
    }  # fmt: skip


def test_times_and_memory_are_told_and_the_device_s_random_state_stays() -> None:
    model = Net(width=256).cuda()
    batch = torch.randn(65536, 256, device="cuda"), torch.randint(0, 3, (65536,), device="cuda")
    before = torch.cuda.get_rng_state()
    result = run_trial(model, [Bundled()], batch, pairs=12, most_pairs=24)
    measured = [row for row in result.rows if row.comparison is not None]
    assert measured
    assert all(row.peak_bytes is not None for row in measured)
    assert torch.equal(torch.cuda.get_rng_state(), before)
