"""channels_last is proved again when a run is resumed, advised, and refused where it would harm."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from gradwatch import FusedBackwardOptions, MemorySink
from gradwatch.callbacks import FusedBackward
from gradwatch.fused import trial
from gradwatch.fused.bounds import Diagnosis
from gradwatch.fused.layout import ChannelsLast
from gradwatch.fused.trial import Again, Result, Trial
from gradwatch.ranks import Ranks
from gradwatch.roofline.verdicts import LayerVerdict
from tests.fused.lab import QUICK, Offers, make_bench, quick, run_trial
from tests.kit import Calm, ResumableLoader, SavesAt, build, fit, make_samples

BATCH = torch.randn(3, 2, 6, 6, generator=torch.Generator().manual_seed(0)), torch.arange(3)
OPTIONS = {**QUICK, "channels_last": True, "providers": ()}
FOLLOWED = "kept in the run that was resumed; a few steps in it followed the stock course again"


class Convolutions(nn.Module):
    """Two convolutions and a norm; may compute something else once channels come last."""

    def __init__(self, *, wrong_when_last: bool = False) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 4, 3), nn.Conv2d(4, 4, 3)
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 3)
        self._wrong = wrong_when_last

    def forward(self, x: Tensor) -> Tensor:
        h = self.second(self.first(x)).flatten(1)
        if self._wrong and is_last(self.second.weight):
            h = h * 1.05
        return self.head(self.norm(h) + h)


def is_last(weight: Tensor) -> bool:
    return weight.is_contiguous(memory_format=torch.channels_last)


def resume(model: nn.Module, again: Again, **options: Any) -> Result:
    chosen = FusedBackwardOptions(**{**OPTIONS, **options})
    return Trial(make_bench(model, BATCH), chosen, Ranks()).run(again)


ALL = Again(frozenset(), channels_last=True)


def test_at_a_resume_it_is_proved_again_and_put_back() -> None:
    result = resume(Convolutions(), ALL)
    assert result.channels_last
    (row,) = result.rows
    assert (row.kind, row.verdict, row.reason) == ("channels_last", "kept", FOLLOWED)


def test_at_a_resume_it_is_not_put_back_where_training_leaves_its_course() -> None:
    result = resume(Convolutions(wrong_when_last=True), ALL)
    assert not result.channels_last
    (row,) = result.rows
    assert row.verdict == "rejected"
    assert "of the way off the stock course" in row.reason


def test_at_a_resume_it_stays_off_where_it_is_not_wanted_any_more() -> None:
    result = resume(Convolutions(), ALL, channels_last=False)
    assert (result.channels_last, result.rows) == (False, ())


def test_swaps_are_proved_on_top_of_the_layout_that_is_put_back() -> None:
    lasts: list[bool] = []
    model = Convolutions()

    def forward(self: nn.LayerNorm, x: Tensor) -> Tensor:
        lasts.append(is_last(model.second.weight))
        return quick(self, x)

    kept = frozenset({("norm", "LayerNorm", "lab")})
    again = Again(kept, channels_last=True)
    result = resume(model, again, providers=(Offers(nn.LayerNorm, forward),))
    assert [each.key for each in result.kept] == list(kept)
    assert lasts
    assert all(lasts)
    assert not is_last(model.second.weight)


def test_a_swap_that_leads_astray_by_now_is_not_put_back() -> None:
    model = Convolutions()

    def forward(self: nn.LayerNorm, x: Tensor) -> Tensor:
        # Its proof runs on copies: only training meets the very module.
        return quick(self, x) + (0.05 * x if self is model.norm else 0.0)

    again = Again(frozenset({("norm", "LayerNorm", "lab")}), channels_last=False)
    result = resume(model, again, providers=(Offers(nn.LayerNorm, forward),))
    assert result.kept == ()
    assert [row.verdict for row in result.rows] == ["rolled back"]


def test_what_was_kept_and_is_not_found_any_more_is_told() -> None:
    again = Again(frozenset({("old.norm", "LayerNorm", "lab")}), channels_last=False)
    (row,) = resume(Convolutions(), again, providers=(Offers(nn.LayerNorm, quick),)).rows
    assert (row.layers, row.verdict) == (("old.norm",), "refused")
    assert row.reason == "kept in the run that was resumed, and not found in this one"


def test_what_was_kept_of_a_provider_that_is_missing_names_the_way_back() -> None:
    again = Again(frozenset({("norm", "LayerNorm", "lab")}), channels_last=False)
    (row,) = resume(Convolutions(), again, providers=("torch",)).rows
    assert row.verdict == "refused"
    assert row.reason.endswith("its provider is not among this one's providers=(...)")


def test_what_was_kept_is_put_back_whatever_the_size_of_the_batch_at_hand() -> None:
    again = Again(frozenset({("norm", "LayerNorm", "lab")}), channels_last=False)
    options = {"providers": (Offers(nn.LayerNorm, quick),), "min_elements": 1 << 20}
    assert len(resume(Convolutions(), again, **options).kept) == 1


class Deep(Calm):
    """Calm, with a second convolution: of the first's one channel either order is the same."""

    def __init__(self) -> None:
        super().__init__()
        self.conv: Any = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 4, 3))


def test_a_resumed_fit_tells_what_was_done(tmp_path: Any) -> None:
    path, sink = str(tmp_path / "middle.ckpt"), MemorySink()
    options = FusedBackwardOptions(**{**OPTIONS, "mode": "force", "after_steps": 2})

    def run(*callbacks: Any, **more: Any) -> None:
        module = build(Deep)
        fit(module, callbacks, ResumableLoader(make_samples()), max_epochs=2, **more)

    run(FusedBackward(options), SavesAt(6, path))
    run(FusedBackward(options, sinks=[sink]), ckpt_path=path)
    (table,) = sink.tables
    (row,) = [dict(zip(table.columns, each, strict=True)) for each in table.rows]
    assert (row["change"], row["verdict"], row["reason"]) == ("channels_last", "kept", FOLLOWED)
    assert sink.findings[0].summary == "convolutions run with channels last from here on"


def test_advice_names_the_layout_where_a_model_convolves() -> None:
    (row,) = run_trial(Convolutions(), [], BATCH, mode="advise", channels_last=True).rows
    assert (row.kind, row.layers, row.verdict) == ("channels_last", ("first", "second"), "advised")
    assert row.reason == "can be tried with mode='auto'"


def test_advice_says_how_much_of_the_step_the_convolutions_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    figures: dict[str, Any] = dict.fromkeys(LayerVerdict._fields, 0.0)
    figures |= {"kind": "compute-bound", "forward_seconds": 1e-3, "backward_seconds": 3e-3}
    known = {name: LayerVerdict(**figures | {"layer": name}) for name in ("first", "second")}
    found = Diagnosis(verdicts=known, step_seconds=20e-3)
    monkeypatch.setattr(trial, "diagnose", lambda *_: found)
    options = {"mode": "advise", "channels_last": True, "profile": True}
    rows = run_trial(Convolutions(), [Offers(nn.LayerNorm, quick)], BATCH, **options).rows
    (row,) = [row for row in rows if row.kind == "channels_last"]
    assert row.reason.endswith("these convolutions take 40.0% of the step")


@pytest.mark.parametrize("model", [nn.Sequential(nn.Flatten(), nn.Linear(72, 3)), Convolutions()])
def test_advice_is_silent_where_there_is_nothing_to_lay_out(model: Any) -> None:
    laid_out = model.to(memory_format=torch.channels_last)
    assert run_trial(laid_out, [], BATCH, mode="advise", channels_last=True).rows == ()


@pytest.fixture
def group() -> Iterator[None]:
    """Give a process group of this one process."""
    store: Any = vars(dist)["HashStore"]()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("mode", ["auto", "advise", "force"])
@pytest.mark.usefixtures("group")
def test_with_a_process_group_it_is_refused_with_the_way_out(mode: str) -> None:
    model = Convolutions()
    result = run_trial(model, [], BATCH, mode=mode, channels_last=True)
    assert not result.channels_last
    (row,) = result.rows
    assert row.verdict == "refused"
    assert "model.to(memory_format=torch.channels_last)" in row.reason
    assert resume(model, ALL).rows[0].verdict == "refused"


@pytest.mark.usefixtures("group")
@pytest.mark.filterwarnings("ignore:Grad strides do not match bucket view strides")
def test_data_parallel_scrambles_gradients_of_weights_laid_out_anew() -> None:
    """Why it is refused: once this fails, PyTorch has mended it, and it can be tried."""
    torch.manual_seed(0)
    model = Convolutions()
    wrapped = DistributedDataParallel(model)
    layout = ChannelsLast(model)

    def apart() -> float:
        model.zero_grad()
        F.cross_entropy(wrapped(BATCH[0]), BATCH[1]).backward()
        own = model.second.weight.grad
        assert own is not None
        loss = F.cross_entropy(model(BATCH[0]), BATCH[1])
        (true,) = torch.autograd.grad(loss, model.second.weight)
        return float((own - true).abs().max() / true.abs().max())

    assert [apart() for _ in range(3)] == pytest.approx([0, 0, 0], abs=1e-5)
    layout.turn(on=True)
    assert apart() > 0.1
