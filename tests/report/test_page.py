"""The page: everything that was found and nothing that runs, loads or breaks out."""

import base64
import hashlib
import html
import io
import json
import os
import re
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import PIL.Image
import pytest
from torch import nn

from gradwatch import ConfigurationError, Coverage, NonFiniteGradientError
from gradwatch.callbacks import GradWatch
from gradwatch.pictures import LIGHT
from gradwatch.report import write_report
from gradwatch.tables import Table
from tests.kit import Net, fit, make_loader
from tests.report.parsed import Page
from tests.report.records import RECORD, fault, step, write

PHASES = [f"mem/process_{phase}_MiB" for phase in ("forward", "backward", "step")]
HOSTILE = "<script>alert(1)</script>\"'&</title><!--${style}"


def page_of(*told: Any, **options: Any) -> Page:
    write(told, **options)
    return Page(write_report(RECORD).read_text())


def test_a_training_that_fails_is_told_with_evidence_cause_remedy_and_chain() -> None:
    watcher = GradWatch(console=False)
    with pytest.raises(NonFiniteGradientError) as stopped:
        fit(Net(), [watcher], make_loader(spoil=[5]), default_root_dir="logs")
    page = Page(write_report("logs").read_text())
    finding = stopped.value.finding
    assert "Something is wrong Non-finite at step 1 in" in page.text
    assert f"First non-finite step {finding.step}" in page.text
    for said in (finding.layer, finding.summary, finding.cause, finding.remedy):
        assert said in page.text
    assert str(finding.evidence["chain"]).split(" → ")[0] in page.text
    assert f"gradwatch replay {finding.evidence['bundle']} --model" in page.text


def test_a_healthy_training_shows_pictures_coverage_and_options() -> None:
    fit(Net(), [GradWatch(console=False)], default_root_dir="logs", log_every_n_steps=2)
    page = Page(write_report("logs").read_text())
    assert "Healthy Nothing was found" in page.text
    assert "gradient_flow.patience" in page.text
    assert "hooked" in page.text
    images = [attrs for tag, attrs in page.tags if tag == "img"]
    assert {attrs["class"] for attrs in images} == {"light", "dark"}
    assert all(attrs["alt"] and attrs["width"] and attrs["height"] for attrs in images)


def test_lines_that_cross_few_pixels_keep_their_colours() -> None:
    norms = (4.0, 3.0, 2.0, 1.0)
    grows = step(0, norms, **{"mem/process_MiB": 565.0, **dict.fromkeys(PHASES, 2.0)})
    still = {"mem/process_MiB": 580.0, **dict.fromkeys(PHASES, 0.0)}
    rests = [step(at, norms, **still) for at in (1, 2)]
    images = [attrs for tag, attrs in page_of(grows, *rests).tags if tag == "img"]
    light = [attrs for attrs in images if attrs["class"] == "light"]
    (memory,) = (attrs for attrs in light if "memory" in str(attrs["alt"]))
    read = io.BytesIO(base64.b64decode(str(memory["src"]).partition(",")[2]))
    used = {colour for _, colour in PIL.Image.open(read).convert("RGB").getcolors() or []}
    assert {*LIGHT.lines[:3]} <= used


def test_a_report_of_a_training_that_goes_on_tells_what_was_recorded_so_far() -> None:
    texts: list[str] = []

    class Curious(pl.Callback):
        def on_train_batch_end(self, trainer: pl.Trainer, *args: Any) -> None:
            if trainer.global_step == 6:
                texts.append(write_report("logs").read_text())

    watched = [GradWatch(console=False), Curious()]
    fit(Net(), watched, default_root_dir="logs", log_every_n_steps=2)
    (so_far,) = (Page(text).text for text in texts)
    assert "still running or crashed" in so_far
    # The record of a step is complete once its update is done.
    assert re.search("Steps seen 0 to [345],", so_far)
    done = Page(write_report("logs").read_text()).text
    assert "still running" not in done
    assert "Steps seen 0 to 13" in done


def test_names_that_are_markup_stay_text() -> None:
    norms = (4.0, 3.0, 2.0, 1.0)
    named = step(0, norms, **{HOSTILE: 1.0})
    flow = named.flow
    assert flow is not None
    layers = (HOSTILE, *flow.layers[1:])
    record = type(named)(
        step=0,
        log_step=0,
        scalars=named.scalars,
        flow=type(flow)(
            layers=layers,
            grad_norm=flow.grad_norm,
            weight_norm=flow.weight_norm,
            has_grad=flow.has_grad,
            frozen=flow.frozen,
        ),
    )
    finding = fault(
        0, HOSTILE, rule=HOSTILE, summary=HOSTILE, cause=HOSTILE, remedy=HOSTILE,
        evidence={HOSTILE: HOSTILE, "chain": HOSTILE, "bundle": HOSTILE, "line": HOSTILE},
    )  # fmt: skip
    table = Table(name=HOSTILE, title=HOSTILE, step=0, columns=(HOSTILE,), rows=((HOSTILE,),))
    coverage = [Coverage(layer=HOSTILE, state="blind", reason=HOSTILE)]
    page = page_of(record, finding, table, coverage=coverage, config={HOSTILE: HOSTILE})
    assert len(page.scripts) == 2
    assert not any(name.startswith("on") for _, attrs in page.tags for name in attrs)
    assert page.text.count("<script>alert(1)</script>") > 10
    (rows,) = [data["rows"] for data in json.loads(page.scripts[0]).values() if "rows" in data]
    assert rows[0] == HOSTILE


def test_a_model_whose_modules_are_named_like_markup_is_reported_as_it_is() -> None:
    class Odd(Net):
        def __init__(self) -> None:
            super().__init__()
            self.add_module('<img src=x onerror="alert(1)">&', nn.Linear(3, 3))

        def forward(self, x: Any) -> Any:
            return self.get_submodule('<img src=x onerror="alert(1)">&')(super().forward(x))

    fit(Odd(), [GradWatch(console=False)], default_root_dir="logs")
    page = Page(write_report("logs").read_text())
    assert '<img src=x onerror="alert(1)">&' in page.text
    assert all(attrs["src"].startswith("data:") for tag, attrs in page.tags if tag == "img")  # type: ignore[union-attr]


def test_the_page_names_nothing_outside_itself_and_forbids_it() -> None:
    text = write_report(write([step(0), fault()])).read_text()
    page = Page(text)
    linked = [attrs[key] for _, attrs in page.tags for key in ("src", "href") if key in attrs]
    assert linked
    assert all(str(link).startswith(("data:image/png;base64,", "#")) for link in linked)
    assert not re.search(r"https?://|@import|url\(", text)
    policy = next(a["content"] or "" for tag, a in page.tags if "http-equiv" in a)
    assert policy.startswith("default-src 'none'; img-src data:;")
    digest = base64.b64encode(hashlib.sha256(page.scripts[1].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in html.unescape(policy)


def test_a_run_without_an_end_says_so_with_the_time_of_its_last_line() -> None:
    page = page_of(step(0), step(1), ends=False)
    assert re.search(
        r"still running or crashed; last written \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", page.text
    )


def test_a_line_that_was_cut_off_is_told() -> None:
    write([step(0), step(1)], ends=False)
    RECORD.write_bytes(RECORD.read_bytes()[:-20])
    assert "1 line of the record is cut off" in Page(write_report(RECORD).read_text()).text


def test_a_record_with_nothing_but_its_header_still_makes_a_page() -> None:
    page = page_of(ends=False)
    assert "No step has been recorded yet." in page.text
    assert "There is nothing to draw yet." in page.text


def test_numbers_no_axis_can_bear_cost_the_pictures_and_not_the_report() -> None:
    ends: dict[str, Any] = {"mem/process_MiB": 1.0, **dict.fromkeys(PHASES, 1.8e308)}
    page = page_of(step(0, **ends), fault(0))
    assert "There is nothing to draw yet." in page.text
    assert len([tag for tag, attrs in page.tags if "card" in str(attrs.get("class"))]) == 1


def test_a_repeated_finding_is_one_card_with_its_count() -> None:
    page = page_of(step(0), *(fault(number) for number in range(40)))
    assert len([tag for tag, attrs in page.tags if "card" in str(attrs.get("class"))]) == 1
    assert "× 40" in page.text
    assert "40 times, the last at step 39" in page.text


def test_thousands_of_findings_are_cut_and_that_is_said() -> None:
    page = page_of(step(0), *(fault(0, f"layer.{number}") for number in range(1000)))
    assert len([tag for tag, attrs in page.tags if "card" in str(attrs.get("class"))]) == 100
    assert "… and 900 more in the record" in page.text


def test_a_table_is_shown_with_what_is_missing_in_it() -> None:
    rows = (("net.0", 12.5, 3), ("net.1", None, 12_000))
    table = Table(name="t", title="Layers", step=7, columns=("layer", "ms", "calls"), rows=rows)
    page = page_of(step(0), table)
    assert "Layers at step 7, 2 rows layer ms calls net.0 12.5 3 net.1 – 12,000" in page.text


def test_blind_layers_come_with_their_reason() -> None:
    coverage = [
        Coverage(layer="a", state="hooked"),
        Coverage(layer="b", state="blind", reason="it is compiled"),
        Coverage(layer="c", state="blind", reason="it is compiled"),
    ]
    page = page_of(step(0), coverage=coverage)
    assert "2 of 3 blind" in page.text
    assert "2 layers: it is compiled b c" in page.text


def test_another_run_of_the_same_record_is_pointed_to() -> None:
    write([step(0)])
    page = page_of(step(0))
    assert "The record holds 2 runs; this is number 2" in page.text


def test_the_report_is_replaced_as_a_whole_and_nothing_is_left_beside_it() -> None:
    first = write_report(write([step(0)])).read_text()
    write([step(1), fault(1)])
    path = write_report(RECORD)
    assert "Needs a look" in path.read_text()
    assert "Needs a look" not in first
    assert sorted(each.name for each in RECORD.parent.iterdir()) == ["record.jsonl", "report.html"]


def test_a_folder_whose_name_is_no_utf_8_is_reported_on() -> None:
    record = write([step(0)], Path(os.fsdecode(b"caf\xe9"), "record.jsonl"))
    assert r"caf\udce9" in write_report(record).read_text(encoding="utf-8")


def test_a_place_that_cannot_be_written_is_refused_and_named() -> None:
    write([step(0)])
    Path("file").write_text("")
    with pytest.raises(ConfigurationError, match=r"cannot be written to file/report\.html"):
        write_report(RECORD, "file/report.html")


def test_a_table_that_only_bears_the_name_of_a_drawn_one_costs_no_picture() -> None:
    table = Table(name="graph", title="Mine", step=0, columns=("a",), rows=(("b",),))
    page = page_of(step(0), table)
    assert "Mine at step 0, 1 row a b" in page.text
    assert [tag for tag, _ in page.tags].count("img") >= 2


def test_a_record_of_a_newer_version_is_read_as_far_as_it_goes_and_that_is_said() -> None:
    write([step(0)])
    text = RECORD.read_text().replace('"format":1', '"format":99')
    RECORD.write_text(text + '{"kind":"hologram","depth":3}\n')
    page = Page(write_report(RECORD).read_text())
    assert "A newer gradwatch wrote this record" in page.text
    assert "0 to 0, 1 of them recorded" in page.text
