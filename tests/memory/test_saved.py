"""What a forward keeps: by hand, beside PyTorch's own hooks, and with a real checkpoint."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from gradwatch.graph.places import Places
from gradwatch.memory import Layer, SavedMemory, heaviest, measure_saved, propose, saved_table

FLOAT = 4


def measure(model: nn.Module, run: Callable[[], Tensor]) -> SavedMemory:
    places = Places(model)
    undo = places.attach()
    root = run()
    undo()
    return measure_saved([root], places, [*model.parameters(), *model.buffers()])


def by_name(saved: SavedMemory) -> dict[str, Layer]:
    return {layer.name: layer for layer in saved.layers}


class Block(nn.Module):
    """Widens fourfold, GELU, and back: what a transformer's block does beside attention."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.act, self.down = (
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.act(self.up(self.norm(x))))


class Stack(nn.Module):
    def __init__(self, width: int = 16, depth: int = 3, *, checkpointed: str = "") -> None:
        super().__init__()
        self.stem = nn.Linear(width, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.checkpointed = checkpointed

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for name, block in self.blocks.named_children():
            again = f"blocks.{name}" == self.checkpointed
            x = checkpoint(block, x, use_reentrant=False) if again else block(x)
        return x.square().mean()


def test_the_layers_of_a_block_save_what_can_be_counted_by_hand() -> None:
    net, x = nn.Sequential(Block(8)), torch.randn(5, 8, requires_grad=True)
    saved = by_name(measure(net, lambda: net(x).sum()))
    wide, narrow = 5 * 32 * FLOAT, 5 * 8 * FLOAT
    # The norm keeps its input and two statistics a row, the products and GELU their inputs.
    assert saved["0.norm"].saved_bytes == narrow + 2 * 5 * FLOAT
    assert saved["0.up"].saved_bytes == narrow
    assert saved["0.act"].saved_bytes == wide
    assert saved["0.down"].saved_bytes == wide


def test_a_module_frees_what_is_made_and_saved_in_it_alone() -> None:
    net = nn.Sequential(nn.Linear(8, 8), Block(8), nn.Linear(8, 2))
    saved = by_name(measure(net, lambda: net(torch.randn(5, 8)).sum()))
    wide, narrow, rows = 5 * 32 * FLOAT, 5 * 8 * FLOAT, 2 * 5 * FLOAT
    assert saved["1"].freed_bytes == 2 * wide + narrow + rows
    assert saved["1.norm"].freed_bytes == rows
    assert saved["1.act"].freed_bytes == 0
    assert "1.up" in saved
    assert saved["1.up"].freed_bytes == 0


def test_operations_are_those_counted_by_hand() -> None:
    class Heads(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            q = x.view(2, 5, 2, 4).transpose(1, 2)
            return F.scaled_dot_product_attention(q, q, q).sum()

    x = torch.randn(2, 5, 8, requires_grad=True)
    conv, heads = nn.Conv2d(3, 4, 3), Heads()
    convolved = by_name(measure(conv, lambda: conv(torch.randn(2, 3, 8, 8))))
    assert convolved["<root>"].flops == 2 * (2 * 4 * 6 * 6) * (3 * 3 * 3)
    attended = by_name(measure(heads, lambda: heads(x)))
    products = 2 * 2 * (2 * 2 * 5 * 5 * 4)
    assert products < attended["<root>"].flops < 1.5 * products


def hooked_bytes(model: nn.Module, run: Callable[[], Tensor]) -> int:
    """Add up what PyTorch's own hooks on saved tensors see: the slow, obvious way."""
    own = {each.untyped_storage().data_ptr() for each in [*model.parameters(), *model.buffers()]}
    seen: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        kept = run()
    del kept
    return sum(seen.values())


def small_cnn() -> tuple[nn.Module, Tensor]:
    layers = (nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(36, 3)), torch.randn(2, 1, 8, 8)


def small_encoder() -> tuple[nn.Module, Tensor]:
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), torch.randn(2, 7, 16)


@pytest.mark.parametrize("make", [small_cnn, small_encoder])
def test_the_total_is_what_pytorch_s_own_hooks_see(
    make: Callable[[], tuple[nn.Module, Tensor]],
) -> None:
    model, x = make()
    total = measure(model, lambda: model(x).square().mean()).total_bytes
    assert total == pytest.approx(hooked_bytes(model, lambda: model(x).square().mean()), rel=0.02)


def test_a_checkpoint_frees_what_was_promised() -> None:
    plain, again = Stack(), Stack(checkpointed="blocks.1")
    x = torch.randn(5, 16)
    before, after = (measure(each, lambda each=each: each(x)) for each in (plain, again))  # type: ignore[misc]
    promised = by_name(before)["blocks.1"].freed_bytes
    # The checkpoint holds its input itself: it is no longer saved, but still there.
    assert before.total_bytes - after.total_bytes - x.nbytes == promised


def test_the_cheapest_modules_are_proposed_and_none_inside_another() -> None:
    x = torch.randn(5, 16)
    net = Stack()
    chosen = [layer.name for layer in propose(measure(net, lambda: net(x)))]
    assert set(chosen) <= {"blocks.0", "blocks.1", "blocks.2"}
    assert len(chosen) == 2


def test_what_frees_nothing_or_everything_is_not_proposed() -> None:
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    assert propose(measure(net, lambda: net(torch.randn(5, 8)).sum())) == ()
    assert propose(SavedMemory()) == ()


def test_the_table_shows_who_saves_and_the_order_of_checkpoints() -> None:
    net = Stack()
    saved = measure(net, lambda: net(torch.randn(64, 16)))
    table = saved_table(saved, 3)
    assert (table.name, table.step) == ("saved", 3)
    marks = {row[0]: row[-1] for row in table.rows if row[-1] is not None}
    assert sorted(str(rank) for rank in marks.values()) == ["1", "2"]
    assert all(str(name).startswith("blocks.") for name in marks)
    shares = [float(row[2] or 0) for row in table.rows]
    assert 90 < sum(shares) <= 100.1


def test_a_look_that_stopped_says_that_there_is_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradwatch.memory.saved.MOST_NODES", 4)
    net = Stack()
    seen = measure(net, lambda: net(torch.randn(5, 16)))
    assert seen.stopped
    assert "over " in saved_table(seen, 1).title
    assert "too large to be read to its end" in saved_table(seen, 1).title


def test_the_heaviest_savers_come_first() -> None:
    net = nn.Sequential(nn.Linear(4, 64), nn.GELU(), nn.Linear(64, 2))
    saved = measure(net, lambda: net(torch.randn(5, 4)).sum())
    assert [layer.name for layer in heaviest(saved)][:2] == ["1", "2"]


def test_what_a_forward_without_gradients_saves_is_nothing() -> None:
    net = nn.Linear(3, 3).requires_grad_(requires_grad=False)
    assert measure(net, lambda: net(torch.ones(2, 3)).sum()) == SavedMemory()
