"""What a person at a terminal reads."""

import io
import sys
from collections.abc import Callable

import numpy as np
import pytest

from gradwatch.findings import Finding
from gradwatch.readings import Coverage, StepRecord
from gradwatch.sinks import ConsoleSink
from gradwatch.tables import Table

MakeRecord = Callable[..., StepRecord]
MakeFinding = Callable[..., Finding]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def sink(told: list[str]) -> ConsoleSink:
    return ConsoleSink(told.append, width=90)


def test_the_start_is_one_line_of_coverage(sink: ConsoleSink, told: list[str]) -> None:
    blind = [Coverage(layer=f"b.{i}", state="blind", reason="compiled") for i in range(5)]
    sink.start([Coverage(layer="net", state="hooked"), *blind])
    assert told == ["gradwatch watches 1 of 6 layers; blind: b.0, b.1, b.2 and 2 more (compiled)"]


def test_a_finding_is_a_block_with_layer_evidence_cause_and_remedy(
    sink: ConsoleSink, told: list[str], make_finding: MakeFinding
) -> None:
    sink.finding(make_finding())
    assert told[0].splitlines() == [
        "gradwatch warning: vanishing in net.0 at step 3: gradient norm is a millionth of the next",
        "  layer's",
        "  evidence  grad_norm 1e-08",
        "  cause     a saturated sigmoid follows",
        "  remedy    use another activation",
    ]


def test_brackets_in_a_text_are_no_markup(
    sink: ConsoleSink, told: list[str], make_finding: MakeFinding
) -> None:
    sink.finding(make_finding(layer="<loss>", cause="batch[0] holds [red] NaN :bug:"))
    assert "batch[0] holds [red] NaN :bug:" in told[0]


def test_a_finding_that_repeats_is_told_once_and_counted(
    sink: ConsoleSink, told: list[str], make_record: MakeRecord, make_finding: MakeFinding
) -> None:
    for step in range(4):
        sink.record(make_record(step))
        sink.finding(make_finding(step=step))
    assert len(told) == 1
    sink.close()
    assert "warning (4 times): vanishing in net.0 at step 0" in told[1]


def test_the_end_shows_totals_layers_and_state(
    sink: ConsoleSink, told: list[str], make_record: MakeRecord
) -> None:
    sink.record(make_record(9, [np.nan, np.inf, 0.0, 0.5], update_ratio=np.full(4, 0.001)))
    sink.close()
    assert "10 steps, 0 findings; at the last step: grad/norm 1.25" in told[0]
    rows = {line.split()[0]: line for line in told[0].splitlines() if line.startswith("net.")}
    assert rows["net.0"].endswith("no gradient")
    assert rows["net.1"].endswith("NaN or Inf")
    assert rows["net.2"].endswith("exactly 0")
    assert rows["net.3"].split() == ["net.3", "0.5", "0.5", "0.001", "2"]


def test_the_end_shows_the_last_update_that_was_measured_and_no_median_of_nothing(
    sink: ConsoleSink, told: list[str], make_record: MakeRecord
) -> None:
    sink.record(make_record(8, [np.inf, 0.5], update_ratio=np.full(2, 0.001)))
    sink.record(make_record(9, [np.inf, 0.5]))
    sink.close()
    rows = {line.split()[0]: line for line in told[0].splitlines() if line.startswith("net.")}
    assert rows["net.0"].split() == ["net.0", "–", "–", "0.001", "2", "NaN", "or", "Inf"]
    assert rows["net.1"].split() == ["net.1", "0.5", "0.5", "0.001", "2"]


@pytest.mark.parametrize("width", [80, 200])
def test_the_end_of_a_big_run_has_at_most_twenty_lines_and_fits(
    width: int, told: list[str], make_record: MakeRecord, make_finding: MakeFinding
) -> None:
    sink = ConsoleSink(told.append, width=width)
    layers = tuple(f"model.encoder.layers.{i}.attention.output.dense" for i in range(300))
    keys = ("grad/norm", "grad/clip_rate", "grad/non_finite", "grad/skipped")
    record = make_record(0, np.ones(300), layers=layers, scalars=dict.fromkeys(keys, 1.0))
    for layer in layers[:40]:
        sink.finding(make_finding(layer=layer))
    sink.record(record)
    sink.close()
    lines = told[-1].splitlines()
    assert len(lines) <= 20
    assert max(map(len, lines)) <= width
    assert "… and 35 findings more" in lines


def test_a_layer_with_a_finding_stands_first(
    sink: ConsoleSink, told: list[str], make_record: MakeRecord, make_finding: MakeFinding
) -> None:
    norms = np.ones(100)
    norms[5] = 1e-9
    sink.record(make_record(0, norms))
    sink.finding(make_finding(layer="net.77"))
    sink.close()
    rows = [line.split()[0] for line in told[-1].splitlines() if line.startswith("net.")]
    assert rows[:2] == ["net.77", "net.5"]


def test_colours_are_for_terminals(
    make_finding: MakeFinding, monkeypatch: pytest.MonkeyPatch
) -> None:
    for stream, coloured in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr(sys, "stdout", stream)
        ConsoleSink().finding(make_finding())
        assert ("\x1b[" in stream.getvalue()) == coloured


def test_a_run_without_records_ends_in_silence(sink: ConsoleSink, told: list[str]) -> None:
    sink.close()
    assert told == []


def make_table(rows: int, *more: str, name: str = "trials") -> Table:
    columns = ("layer", "time (ms)", "verdict", *more)
    cells = [(f"model.layers.{i}.norm", i / 3, None if i % 2 else "kept") for i in range(rows)]
    extra = tuple(f"a long reason in column {column}" for column in more)
    return Table(
        name=name,
        title="What was tried",
        step=3,
        columns=columns,
        rows=tuple((*row, *extra) for row in cells),
    )


def test_a_table_is_shown_with_its_title_and_numbers_cut_to_four_digits(
    sink: ConsoleSink, told: list[str]
) -> None:
    sink.table(make_table(2))
    head, columns, rule, *rows = told[0].splitlines()
    assert head == "gradwatch: What was tried"
    assert columns.split() == ["layer", "time", "(ms)", "verdict"]
    assert set(rule) == {"─"}
    assert [row.split() for row in rows] == [
        ["model.layers.0.norm", "0", "kept"],
        ["model.layers.1.norm", "0.3333", "–"],
    ]


@pytest.mark.parametrize("width", [80, 200])
def test_a_big_table_has_at_most_twenty_lines_and_says_what_is_left_out(
    width: int, told: list[str]
) -> None:
    sink = ConsoleSink(told.append, width=width)
    sink.table(make_table(500, *(f"extra {i}" for i in range(9))))
    lines = told[0].splitlines()
    assert len(lines) <= 20
    assert max(map(len, lines)) <= width
    assert lines[-1].startswith("… and 486 more rows and columns extra ")


def test_brackets_in_a_table_are_no_markup(sink: ConsoleSink, told: list[str]) -> None:
    rows = (("[red]x[/red]", "a\nb"),)
    sink.table(Table(name="own", title="[b]", step=0, columns=("layer", "[i]note"), rows=rows))
    assert "[red]x[/red]" in told[0]
    assert "[i]note" in told[0]
    assert "a b" in told[0]


@pytest.mark.parametrize("name", ["graph", "saved", "kernels", "ceilings"])
def test_what_is_made_unasked_or_for_the_report_is_not_printed(
    name: str, sink: ConsoleSink, told: list[str]
) -> None:
    sink.table(make_table(3, name=name))
    assert told == []


def test_an_empty_table_is_not_printed(sink: ConsoleSink, told: list[str]) -> None:
    sink.table(make_table(0))
    assert told == []
