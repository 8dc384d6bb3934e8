"""Signs read off a loader, a model, an optimizer."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from gradwatch.symptoms import budget_of, devices_of, half_copy_only, loading_of


def test_a_loader_tells_its_workers_and_whether_it_pins() -> None:
    data = TensorDataset(torch.ones(8, 2))
    loading = loading_of(DataLoader(data, num_workers=2, persistent_workers=True), "cuda")
    assert loading is not None
    assert loading == (2, False, True, True)
    assert loading_of([torch.ones(2)]) is None


def test_a_model_under_data_parallel_has_the_devices_it_is_given() -> None:
    wrapped = nn.DataParallel(nn.Linear(2, 2))
    assert devices_of(nn.Sequential(wrapped)) == 1
    wrapped.device_ids = [0, 1, 2]
    assert devices_of(nn.Sequential(wrapped)) == 3


def test_half_weights_without_a_copy_are_named_by_their_type() -> None:
    half = nn.Linear(3, 3).bfloat16()
    optimizer = torch.optim.Adam(half.parameters())
    assert half_copy_only(optimizer) == "bfloat16"
    assert half_copy_only(torch.optim.Adam(nn.Linear(3, 3).parameters())) == ""


def test_a_copy_in_the_optimizer_s_state_counts() -> None:
    half = nn.Linear(3, 3).half()
    optimizer = torch.optim.SGD(half.parameters())
    for parameter in half.parameters():
        optimizer.state[parameter]["master_param"] = parameter.detach().float()
    assert half_copy_only(optimizer) == ""


def test_what_memory_should_hold_is_added_up() -> None:
    net = nn.Linear(4, 2)
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    ten_numbers, two_steps = 10 * 4, 2 * 4
    budget = budget_of(1000, net, [optimizer], 24)
    assert budget == (1000, 4 * ten_numbers + two_steps, 24)
