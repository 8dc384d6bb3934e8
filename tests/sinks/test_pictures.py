"""One drawing for all loggers that show images, each of which may fail for itself."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from PIL.Image import Image

from gradwatch.findings import Finding
from gradwatch.readings import StepRecord
from gradwatch.sinks.fuse import Fuse
from gradwatch.sinks.pictures import PictureSink
from gradwatch.tables import Table

MakeRecord = Callable[..., StepRecord]
MakeFinding = Callable[..., Finding]


class Wall:
    """Keep what was hung."""

    def __init__(self) -> None:
        self.hung: list[tuple[int, dict[str, Image]]] = []

    def __call__(self, pictures: Mapping[str, Image], log_step: int) -> None:
        self.hung.append((log_step, dict(pictures)))

    @property
    def steps(self) -> list[int]:
        return [log_step for log_step, _ in self.hung]


class BrokenWall:
    """Fail as a full disk does."""

    calls = 0

    def __call__(self, pictures: Mapping[str, Image], log_step: int) -> None:
        self.calls += 1
        raise OSError("no space left on device")


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def make_sink(told: list[str]) -> Callable[..., PictureSink]:
    def make(*walls: Any) -> PictureSink:
        protected = [(wall, Fuse(type(wall).__name__, told.append)) for wall in walls]
        return PictureSink(protected, tell=told.append)

    return make


def test_all_walls_get_the_same_drawing(
    make_sink: Callable[..., PictureSink], make_record: MakeRecord
) -> None:
    first, second = Wall(), Wall()
    sink = make_sink(first, second)
    for step in range(16):
        sink.record(make_record(step))
    assert first.steps == second.steps == [15]
    assert first.hung[0][1]["flow/heatmap"] is second.hung[0][1]["flow/heatmap"]


def test_a_finding_has_its_picture_with_the_next_record_but_news_has_none(
    make_sink: Callable[..., PictureSink], make_record: MakeRecord, make_finding: MakeFinding
) -> None:
    wall = Wall()
    sink = make_sink(wall)
    for step in range(6):
        if step == 2:
            sink.finding(make_finding(severity="info"))
        if step == 4:
            sink.finding(make_finding())
        sink.record(make_record(step))
    assert wall.steps == [4]


def test_the_end_is_drawn_once_and_only_where_it_shows_something_new(
    make_sink: Callable[..., PictureSink], make_record: MakeRecord
) -> None:
    wall = Wall()
    sink = make_sink(wall)
    for step in range(16):
        sink.record(make_record(step))
    sink.close()
    assert wall.steps == [15]
    sink.record(make_record(16))
    sink.close()
    sink.close()
    assert wall.steps == [15, 16]


def test_a_run_without_a_record_hangs_nothing(make_sink: Callable[..., PictureSink]) -> None:
    wall = Wall()
    sink = make_sink(wall)
    sink.start([])
    sink.close()
    assert wall.hung == []


def test_a_wall_that_fails_is_told_once_and_the_others_go_on(
    make_sink: Callable[..., PictureSink], make_record: MakeRecord, told: list[str]
) -> None:
    broken, good = BrokenWall(), Wall()
    sink = make_sink(broken, good)
    for step in range(40):
        sink.record(make_record(step))
    sink.close()
    assert told == [
        "BrokenWall is switched off, training goes on: OSError: no space left on device"
    ]
    assert broken.calls == 1
    assert good.steps == [15, 31, 39]


def test_a_drawing_that_fails_is_told_once(
    make_sink: Callable[..., PictureSink],
    make_record: MakeRecord,
    told: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*args: Any, **kwargs: Any) -> list[Any]:
        raise ImportError("no font")

    monkeypatch.setattr("gradwatch.pictures.gallery", fail)
    wall = Wall()
    sink = make_sink(wall)
    for step in range(40):
        sink.record(make_record(step))
    sink.close()
    assert told == ["gradwatch: drawing is switched off, training goes on: ImportError: no font"]
    assert wall.hung == []


def test_no_picture_has_the_key_of_a_number(
    make_sink: Callable[..., PictureSink], make_record: MakeRecord
) -> None:
    wall = Wall()
    sink = make_sink(wall)
    counts = {
        "grad/norm": 1.0,
        "grad/loss_scale": 64.0,
        "grad/skipped": 1.0,
        "mem/process_MiB": 9.0,
    }
    for step in range(4):
        sink.record(make_record(step, scalars=counts))
    sink.close()
    ((_, pictures),) = wall.hung
    assert "flow/loss_scale" in pictures
    assert pictures.keys() & counts.keys() == set()


def test_a_table_that_can_be_drawn_is(
    make_sink: Callable[..., PictureSink], make_record: MakeRecord
) -> None:
    wall = Wall()
    sink = make_sink(wall)
    columns = ("depth", "layer", "operation", "mark")
    rows = ((0, "head", "AddmmBackward0", ""), (1, "act", "SigmoidBackward0", "saturating"))
    sink.record(make_record(0))
    sink.table(Table(name="graph", title="graph", step=0, columns=columns, rows=rows))
    sink.close()
    assert "graph/chain" in wall.hung[0][1]
