"""A bundle holds what the failing step began from, keeps to its bound and never stops a run."""

import copy
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gradwatch import Finding, MemorySink, NonFiniteGradientError, NonFiniteOptions, watch
from gradwatch.callbacks import NonFiniteMonitor
from gradwatch.non_finite.blame import NO_REPLAY
from gradwatch.non_finite.bundle_replay import BundleError, replay_bundle
from tests.kit import Calm, ResumableLoader, build, fit, make_half, make_loader, make_samples


class Rooted(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.sqrt(x * (x > 0))


class Net(nn.Module):
    """Six layers, a buffer no state_dict holds, a frozen layer and one in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        first = (nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.3), Rooted())
        self.net = nn.Sequential(*first, nn.LayerNorm(6), nn.Linear(6, 1))
        self.net[2].eval()
        self.net[4].requires_grad_(requires_grad=False)
        self.factor: Tensor
        self.register_buffer("factor", torch.ones(()), persistent=False)

    def forward(self, batch: Any) -> Tensor:
        out: Tensor = self.net(batch["x"] * self.factor)
        return out


def train(batch: Any, model: nn.Module | None = None, **options: Any) -> Finding:
    """Run steps of a plain loop until one is stopped; give what was found first."""
    sink, net = MemorySink(), model or Net()
    optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.1)
    chosen = NonFiniteOptions(**options)
    with watch(net, optimizer, non_finite=chosen, console=False, sinks=[sink]):
        for _ in range(3):
            net(batch).sum().backward()
            try:
                optimizer.step()
            except NonFiniteGradientError:
                break
            optimizer.zero_grad()
    return next(each for each in sink.findings if each.rule == "non_finite")


def make_batch() -> dict[str, Tensor]:
    return {"x": torch.randn(8, 4)}


def load(finding: Finding) -> dict[str, Any]:
    bundle: dict[str, Any] = torch.load(str(finding.evidence["bundle"]), weights_only=True)
    return bundle


def test_it_loads_as_tensors_and_primitives_and_holds_the_state_before_the_step() -> None:
    model, batch = Net(), make_batch()
    before = copy.deepcopy(model.state_dict())
    finding = train(batch, model)
    bundle = load(finding)
    assert bundle["batch"][0][0]["x"].equal(batch["x"])
    assert bundle["state_dict"].keys() == before.keys()
    assert all(bundle["state_dict"][n].equal(p.detach()) for n, p in model.named_parameters())
    assert all(before[n].equal(bundle["state_dict"][n]) for n, _ in model.named_parameters())
    assert bundle["buffers"] == {"factor": torch.ones(())}
    assert bundle["evaluating"] == ["net.2"]
    assert bundle["frozen"] == ["net.4.weight", "net.4.bias"]
    assert bundle["finding"]["layer"] == finding.layer == "net.3"
    assert bundle["versions"]["torch"] == torch.__version__
    assert bundle["suspects"]["order"][:2] == ["net.0", "net.1"]


def test_a_replay_of_it_names_the_same_layer_operation_and_verdict() -> None:
    finding = train(make_batch())
    again = replay_bundle(Path(str(finding.evidence["bundle"])), Net)
    assert again.same
    assert again.verdict_now == again.verdict_then == finding.evidence["replay"]
    assert again.now.layer == finding.layer
    assert again.now.cause == finding.cause
    assert again.notes == ()


def test_a_bundle_of_a_device_that_is_not_there_is_replayed_on_the_cpu_and_says_so() -> None:
    path = Path(str(train(make_batch()).evidence["bundle"]))
    bundle = torch.load(path, weights_only=True)
    bundle["device"] = "cuda"
    bundle["random"]["devices"] = {"cuda:0": torch.zeros(16, dtype=torch.uint8)}
    torch.save(bundle, path)
    again = replay_bundle(path, Net)
    assert again.same
    assert "run on cuda, replayed on the CPU" in again.notes[0]


@pytest.mark.parametrize(
    ("max_bytes", "without"),
    [(700, "weights"), (300, "micro-batch")],
    ids=["no room for the weights", "no room for anything"],
)
def test_over_its_bound_weights_then_batch_are_left_out_and_it_says_so(
    max_bytes: int, without: str
) -> None:
    finding = train({"x": torch.randn(24, 4)}, bundle_bytes=max_bytes)
    bundle = load(finding)
    assert bundle["state_dict"] is None
    assert without in str(finding.evidence["left out of it"])
    assert any(line.startswith(without) for line in bundle["left_out"])
    assert (bundle["batch"] is None) == (without == "micro-batch")


def test_without_weights_the_factory_gives_them_and_without_a_batch_it_is_refused() -> None:
    finding = train({"x": torch.randn(24, 4)}, bundle_bytes=700)
    again = replay_bundle(Path(str(finding.evidence["bundle"])), Net)
    assert again.same
    assert any("the weights are the factory's own" in note for note in again.notes)
    finding = train({"x": torch.randn(24, 4)}, bundle_bytes=300)
    with pytest.raises(BundleError, match="holds no micro-batch: weights"):
        replay_bundle(Path(str(finding.evidence["bundle"])), Net)


def test_a_view_into_a_large_tensor_is_written_alone() -> None:
    finding = train({"x": torch.randn(100_000, 4)[:8]})
    assert Path(str(finding.evidence["bundle"])).stat().st_size < 60_000


@contextmanager
def full_disk(max_bytes: int) -> Iterator[None]:
    """Let this process write no file longer than so many bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (max_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def train_until_skips_end() -> list[Finding]:
    """Three bad steps in a row, each of them told."""
    sink = MemorySink()
    monitor = NonFiniteMonitor(NonFiniteOptions(policy="skip"), sinks=[sink])
    fit(build(Calm), [monitor], make_loader(28, (2, 6, 10)), max_epochs=1)
    return sink.findings


def test_on_a_full_disk_nothing_stays_and_the_findings_are_told() -> None:
    with full_disk(2_000):
        findings = train_until_skips_end()
    assert [finding.step for finding in findings] == [0, 1, 2]
    told = [str(finding.evidence.get("bundle", "")) for finding in findings]
    assert told[0].startswith("not written (")
    assert told[1:] == ["", ""]
    assert [path for path in Path().rglob("*") if path.suffix in {".pt", ".part"}] == []


def test_where_no_folder_can_be_made_the_finding_is_told() -> None:
    Path("gradwatch_runs").write_text("a file stands in the way")
    finding = train(make_batch())
    assert finding.layer == "net.3"
    assert "not written" in str(finding.evidence["bundle"])
    assert Path("gradwatch_runs").is_file()


def test_no_more_are_written_than_asked_for() -> None:
    sink = MemorySink()
    options = NonFiniteOptions(policy="skip", max_bundles=2)
    loader = make_loader(28, (2, 6, 10))
    fit(build(Calm), [NonFiniteMonitor(options, sinks=[sink])], loader, max_epochs=1)
    assert len(sink.findings) == 3
    assert sorted(path.name for path in Path("gradwatch_runs").glob("*.pt")) == [
        "step-0.pt",
        "step-1.pt",
    ]


@pytest.mark.parametrize("choice", ["not wanted", "no replay", "a dry run"])
def test_none_is_written_where_it_is(choice: str) -> None:
    chosen: dict[str, dict[str, Any]] = {
        "not wanted": {"bundle": False},
        "no replay": {"replay": False},
    }
    options = chosen.get(choice, {})
    monitor = NonFiniteMonitor(NonFiniteOptions(**options))
    with pytest.raises(NonFiniteGradientError) as caught:
        fit(build(Calm), [monitor], make_loader(8, [1]), fast_dev_run=choice == "a dry run")
    assert "bundle" not in caught.value.finding.evidence
    assert list(Path().rglob("*.pt")) == []


def test_a_step_declared_not_to_be_replayed_gets_the_labelled_answer_and_runs_once() -> None:
    runs: list[int] = []

    class Counted(Calm):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            runs.append(batch_idx)
            return super().training_step(batch, batch_idx)

    with pytest.raises(NonFiniteGradientError, match="by parameter gradients alone") as caught:
        fit(build(Counted), [NonFiniteMonitor(NonFiniteOptions(replay=False))], make_loader(8, [1]))
    assert str(caught.value.finding.evidence["replay"]).startswith(NO_REPLAY)
    assert runs == [0]


class Pair(NamedTuple):
    x: Tensor
    name: str


@dataclass
class Batch:
    pair: Pair
    weight: Any
    reader: Any = None

    def __getitem__(self, key: str) -> Tensor:
        return self.pair.x * self.weight


def test_what_is_of_a_class_is_listed_and_comes_back_by_its_fields() -> None:
    class ByFields(Net):
        def forward(self, batch: Any) -> Tensor:
            out: Tensor = self.net(batch.pair.x * float(batch.weight))
            return out

    batch = Batch(Pair(torch.randn(8, 4), "first"), np.float64(1.5), iter([1]))
    finding = train(batch, ByFields())
    lines = "\n".join(load(finding)["left_out"])
    assert "Batch, its fields saved, not its class" in lines
    assert "batch[0][0].pair: " in lines
    assert "batch[0][0].weight: numpy.float64, saved as a plain number" in lines
    assert "batch[0][0].reader: list_iterator, not saved" in lines
    assert replay_bundle(Path(str(finding.evidence["bundle"])), ByFields).same


def explained(scale: float, **options: Any) -> list[Finding]:
    sink = MemorySink()
    monitor = NonFiniteMonitor(NonFiniteOptions(scaler_patience=50, **options), sinks=[sink])
    make = partial(Calm, partial(torch.optim.SGD, lr=0.01))
    plugins = [make_half(scale)]
    fit(build(make), [monitor], ResumableLoader(make_samples(40)), max_epochs=1, plugins=plugins)
    return sink.findings


def test_a_skip_is_explained_when_asked_and_not_again_within_the_cooldown() -> None:
    assert explained(2.0**40) == []
    (finding,) = explained(2.0**40, explain_skips=True)
    assert (finding.rule, finding.severity, finding.step) == ("loss_scale", "info", 0)
    assert "the scaler skips this step" in finding.summary
    assert finding.evidence["loss_scale"] == 2.0**40
    assert finding.layer != "<optimizer>"
    assert len(explained(2.0**40, explain_skips=True, cooldown=2)) > 2


def test_a_skip_of_a_plain_loop_is_explained_too() -> None:
    sink, model = MemorySink(), nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20)
    options = NonFiniteOptions(explain_skips=True)
    with watch(model, optimizer, scaler=scaler, non_finite=options, console=False, sinks=[sink]):
        with torch.autocast("cpu", torch.float16):
            out = model(torch.randn(8, 4))
        scaler.scale(out.float().sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    (finding,) = sink.findings
    assert (finding.rule, finding.severity, finding.layer) == ("loss_scale", "info", "2")
    assert "backward of aten::" in finding.summary


def test_a_run_without_skips_explains_none() -> None:
    assert explained(64.0, explain_skips=True) == []
