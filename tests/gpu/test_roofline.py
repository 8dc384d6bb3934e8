"""The roofline on a card: kernels by layer, verdicts, and a training that is the same bits."""

import pytest
import torch
from torch import Tensor, nn

from gradwatch.roofline import Profile, RooflineOptions, measure_ceilings, profile

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

OPTIONS = RooflineOptions(warmup_steps=5, timed_steps=3, traced_steps=3)


class Block(nn.Module):
    """A residual block; wide, its activations are many times the L2."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.fc = nn.LayerNorm(width), nn.Linear(width, width)
        self.gelu, self.drop = nn.GELU(), nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.drop(self.gelu(self.fc(self.norm(x))))
        return out


@pytest.fixture(scope="module")
def large() -> Profile:
    x = torch.randn(32768, 4096, device="cuda")
    return profile(Block(4096).cuda(), x, options=OPTIONS)


def test_wide_layers_are_bound_as_they_should_be(large: Profile) -> None:
    kinds = {own.layer: own.kind for own in large.layers}
    assert kinds["fc"] == "compute-bound"
    assert {kinds[name] for name in ("norm", "gelu", "drop", "<root>")} == {"bandwidth-bound"}


def test_no_layer_moves_more_than_the_memory_can(large: Profile) -> None:
    ceiling = large.ceilings.copy_bytes_per_second
    assert all(own.achieved_bytes_per_second < 1.1 * ceiling for own in large.layers)


def test_kernels_of_the_layers_add_up_to_the_backward(large: Profile) -> None:
    layers = sum(own.backward_seconds for own in large.layers)
    assert layers == pytest.approx(large.phases["backward"], rel=0.1)


def test_kernels_have_names_of_the_device_and_layers_of_the_model(large: Profile) -> None:
    first = large.kernels[0]
    assert not first.name.startswith("aten::")
    assert (first.layer, first.purpose) == ("fc", "matrix product")


def test_a_toy_is_bound_by_its_launches() -> None:
    model = nn.Sequential(*(Block(64) for _ in range(4))).cuda()
    told = profile(model, torch.randn(8, 64, device="cuda"), options=OPTIONS)
    assert {own.kind for own in told.layers} == {"launch-bound"}


def test_a_recomputed_block_keeps_its_name_though_another_thread_runs_it() -> None:
    class Checkpointed(Block):
        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = torch.utils.checkpoint.checkpoint(super().forward, x, use_reentrant=False)
            return out

    x = torch.randn(256, 512, device="cuda", requires_grad=True)
    told = profile(nn.Sequential(Checkpointed(512), Block(512)).cuda(), x, options=OPTIONS)
    flops = {own.layer: own.flops for own in told.layers}
    assert flops["0.fc"] > flops["1.fc"]


def test_ranges_for_the_vendors_tools_are_put_around_the_layers() -> None:
    options = RooflineOptions(warmup_steps=1, timed_steps=1, traced_steps=1, nvtx=True)
    told = profile(Block(64).cuda(), torch.randn(8, 64, device="cuda"), options=options)
    assert told.layers


def test_the_ceilings_are_those_of_a_card() -> None:
    own = measure_ceilings("cuda", ("float32", "bfloat16"), refresh=True)
    assert own.copy_bytes_per_second > 50e9
    assert own.matrix_flops_per_second["bfloat16"] > own.matrix_flops_per_second["float32"]
