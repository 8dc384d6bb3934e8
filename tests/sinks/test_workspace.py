"""The ready-made W&B page as its spec says it, built and written without a server."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gradwatch import ConfigurationError
from gradwatch.callbacks import GradWatch
from gradwatch.cli import make_app
from gradwatch.sinks.keys import FAMILIES
from gradwatch.sinks.rows import X_AXIS
from gradwatch.sinks.workspace import make_workspace, spec_of
from gradwatch.sinks.workspace_sink import WorkspaceSink

KEYS = [
    "grad/norm",
    "grad/norm_clipped/opt1",
    "grad/non_finite",
    "grad/skipped",
    "grad/clip_rate",
    "grad/loss_scale",
    "grad_norm_depth/07",
    *(f"{family}/net/0/norm1" for family in FAMILIES),
    *(f"lr/{name}/group1" for name in ("snr", "factor", "effective")),
    *(f"mem/{name}_MiB" for name in ("allocated", "process", "process_peak", "peak", "cached")),
    *(f"mem/process_{phase}_MiB" for phase in ("forward", "backward", "step")),
]


class FakeRun:
    """A run as far as the page asks."""

    disabled, entity, project = False, "acme", "grads"

    def __init__(self, *, offline: bool) -> None:
        self.offline = offline


@pytest.fixture(autouse=True)
def _no_login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is logged in, whoever runs the tests, and nothing listens at the discard port."""
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")


@pytest.fixture(scope="module")
def sections() -> list[dict[str, Any]]:
    spec = json.loads(json.dumps(spec_of(make_workspace("acme", "grads"))))
    sections: list[dict[str, Any]] = spec["section"]["panelBankConfig"]["sections"]
    return sections


@pytest.fixture(scope="module")
def plots(sections: list[dict[str, Any]]) -> list[dict[str, Any]]:
    panels = [panel for section in sections for panel in section["panels"]]
    return [panel["config"] for panel in panels if panel["viewType"] == "Run History Line Plot"]


def test_the_pictures_stand_on_top(sections: list[dict[str, Any]]) -> None:
    first = sections[0]["panels"]
    assert [panel["viewType"] for panel in first] == ["Media Browser"] * len(first)
    keys = [panel["config"]["mediaKeys"] for panel in first]
    assert keys[:2] == [["flow/heatmap"], ["flow/profile"]]


def test_every_section_is_open_and_no_panel_makes_itself(sections: list[dict[str, Any]]) -> None:
    assert all(section["isOpen"] for section in sections)
    spec = spec_of(make_workspace("acme", "grads"))
    assert spec["section"]["settings"]["shouldAutoGeneratePanels"] is False


@pytest.mark.parametrize("key", KEYS)
def test_each_metric_is_drawn_in_exactly_one_panel(key: str, plots: list[dict[str, Any]]) -> None:
    # Searched, not matched from the start: which of the two the server does is not written down.
    panels = [plot["chartTitle"] for plot in plots if re.search(plot["metricRegex"], key)]
    assert len(panels) == 1


def test_the_step_is_the_x_axis_of_every_panel(plots: list[dict[str, Any]]) -> None:
    assert {plot["xAxis"] for plot in plots} == {X_AXIS}
    assert all(plot["useMetricRegex"] and plot["xAxisTitle"] == "step" for plot in plots)


def test_norms_are_on_a_logarithmic_axis_and_counts_are_not(plots: list[dict[str, Any]]) -> None:
    log = {plot["metricRegex"]: plot["yLogScale"] for plot in plots}
    assert all(log[f"^{family}/.*"] for family in FAMILIES)
    assert not log["^grad/(non_finite|skipped).*"]


def test_the_table_of_runs_shows_verdict_worst_layer_and_first_bad_step() -> None:
    feed = spec_of(make_workspace("acme", "grads"))["section"]["runSets"][0]["runFeed"]
    assert feed["columnOrder"] == [
        "run:displayName",
        "summary:flow/verdict",
        "summary:flow/worst_layer",
        "summary:grad/first_non_finite_step",
    ]


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(make_app(), ["workspace", *arguments])


def test_the_spec_is_written_to_a_file_without_a_server(tmp_path: Path) -> None:
    result = invoke("acme/grads", "--write", "new/page.json")
    assert (result.exit_code, result.output) == (0, "new/page.json\n")
    stored = json.loads((tmp_path / "new" / "page.json").read_text())
    assert (stored["entity"], stored["project"]) == ("acme", "grads")
    assert stored["spec"]["section"]["panelBankConfig"]["sections"]


@pytest.mark.parametrize("place", ["acme", "/grads", "acme/", "a/b/c"])
def test_a_place_that_is_none_is_refused_with_its_form(place: str) -> None:
    result = invoke(place, "--write", "page.json")
    assert result.exit_code == 2
    assert f"expected ENTITY/PROJECT, as in W&B's address; got {place!r}" in result.output


def test_without_a_login_the_command_says_what_is_missing() -> None:
    result = invoke("acme/grads")
    assert result.exit_code == 2
    assert "no workspace for acme/grads: " in result.output
    assert "wandb login" in result.output


@pytest.mark.parametrize("wanted", [True, False])
def test_without_the_extra_the_callback_names_the_line_that_installs_it(
    wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb_workspaces", None)
    monkeypatch.delitem(sys.modules, "wandb_workspaces")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    if wanted:
        with pytest.raises(ConfigurationError, match=r"pip install 'gradwatch\[workspace\]'"):
            GradWatch(workspace=wanted)
    else:
        GradWatch(workspace=wanted)


def test_an_offline_run_says_in_one_line_how_to_do_it_later() -> None:
    told: list[str] = []
    sink = WorkspaceSink(FakeRun(offline=True), tell=told.append)
    sink.start([])
    sink.close()
    (line,) = told
    assert line.endswith("after wandb sync: gradwatch workspace ENTITY/grads")


def test_a_page_that_cannot_be_saved_is_told_once_with_the_way_to_try_again() -> None:
    told: list[str] = []
    # No key and no server: the real client refuses.
    sink = WorkspaceSink(FakeRun(offline=False), tell=told.append)
    sink.start([])
    sink.close()
    sink.close()
    (line,) = told
    assert "could not be saved, training goes on" in line
    assert line.endswith("to try again: gradwatch workspace acme/grads")
