"""Online runs, a later sync and the saved page, against a stand-in for W&B's server."""

import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.online.conftest import HERE, Start
from tests.wandb_server import WandbServer

PICTURES = {"flow/heatmap", "flow/profile", "flow/update_ratio", "flow/total_norm"}


@dataclass
class Arrived:
    """What the server holds of one run."""

    server: WandbServer
    id: str
    folder: Path

    @property
    def rows(self) -> list[dict[str, Any]]:
        return self.server.history(self.id)

    @property
    def alerts(self) -> list[dict[str, Any]]:
        sent = self.server.sent("NotifyScriptableRunAlert")
        return [alert for alert in sent if alert["runName"] == self.id]

    def file(self, path: str) -> bytes:
        return self.server.files[f"{self.id}/{path}"]

    def last(self, key: str) -> Any:
        return [row[key] for row in self.rows if key in row][-1]


@dataclass
class Both:
    """An online run and an offline one that was synced, and what their process said."""

    online: Arrived
    synced: Arrived
    printed: str


@pytest.fixture(scope="module")
def both(server: WandbServer, start: Start, tmp_path_factory: pytest.TempPathFactory) -> Both:
    folder = tmp_path_factory.mktemp("runs")
    trained = start(HERE / "two_runs.py", folder)
    assert trained.returncode == 0, trained.stderr
    told = json.loads(trained.stdout.splitlines()[-1])
    online, offline = (Arrived(server, own["id"], Path(own["folder"])) for own in told["runs"])
    assert told["codes"] == [0, 0]
    assert offline.rows == []
    synced = start("-m", "wandb", "sync", offline.folder)
    assert synced.returncode == 0, synced.stderr
    return Both(online, offline, trained.stdout + trained.stderr)


@pytest.fixture(params=["online", "synced"])
def run(request: pytest.FixtureRequest, both: Both) -> Arrived:
    arrived: Arrived = getattr(both, request.param)
    return arrived


def test_every_step_arrives_with_its_layers(run: Arrived) -> None:
    rows = [row for row in run.rows if "grad/non_finite" in row]
    assert [row["trainer/global_step"] for row in rows] == list(range(14))
    layers = {"conv", "bn", "hidden", "norm", "head"}
    whole = {f"{family}/{layer}" for family in ("grad_norm", "weight_norm") for layer in layers}
    assert whole <= rows[0].keys()
    assert rows[-1]["grad/skipped"] == 2


def test_no_number_that_arrives_is_non_finite(run: Arrived) -> None:
    text = json.dumps(run.rows)
    assert "NaN" not in text
    assert "Infinity" not in text


def test_the_alert_names_layer_and_rule_in_the_title_and_the_way_out_in_the_text(
    run: Arrived,
) -> None:
    (alert,) = run.alerts
    assert alert["title"] == "non_finite: <input>"
    assert (alert["severity"], alert["projectName"]) == ("ERROR", "grads")
    lines = alert["text"].splitlines()
    assert lines[0].startswith("non_finite in <input> at step 1: NaN came in with batch[0]")
    assert {"cause", "remedy", "written"} <= {line.split()[0] for line in lines[1:]}


def test_the_pictures_arrive_as_png(run: Arrived) -> None:
    for key in PICTURES:
        picture = run.last(key)
        data = run.file(picture["path"])
        assert data.startswith(b"\x89PNG\r\n\x1a\n")
        with Image.open(io.BytesIO(data)) as image:
            assert image.size == (picture["width"], picture["height"])


def test_the_fault_has_its_picture_at_its_own_step(run: Arrived) -> None:
    drawn = [row["trainer/global_step"] for row in run.rows if "flow/heatmap" in row]
    assert drawn == [1, 8, 13]


def test_the_tables_arrive(run: Arrived) -> None:
    trials = json.loads(run.file(run.last("fused/trials")["path"]))
    assert trials["columns"] == ["layer", "speedup (×)", "verdict"]
    assert trials["data"] == [["norm", 1.25, "kept"], ["bn", None, "not tried"]]
    findings = json.loads(run.file(run.last("flow/findings")["path"]))
    assert [row[:3] for row in findings["data"]] == [
        [1, "non_finite", "<input>"],
        [8, "non_finite", "<input>"],
    ]


def test_the_summary_holds_the_verdict(run: Arrived) -> None:
    summary = run.server.summary(run.id) or json.loads(run.file("wandb-summary.json"))
    assert summary["flow/worst_layer"] == "<input>"
    assert summary["grad/first_non_finite_step"] == 1
    assert summary["flow/finding_count"] == 2
    assert summary["flow/verdict"].startswith("non_finite in <input> at step 1")


def test_the_page_is_saved_by_the_online_run_alone(both: Both, server: WandbServer) -> None:
    saved = server.sent("UpsertView2")[0]
    assert (saved["entityName"], saved["projectName"]) == ("acme", "grads")
    assert saved["displayName"] == "gradwatch"
    sections = json.loads(saved["spec"])["section"]["panelBankConfig"]["sections"]
    assert sections[0]["panels"][0]["config"]["mediaKeys"] == ["flow/heatmap"]
    assert both.printed.count(f"W&B workspace: {server.url}/acme/grads?nw=gradwatch") == 1
    assert both.printed.count("after wandb sync: gradwatch workspace ENTITY/grads") == 1


def test_the_command_leaves_a_page_that_is_there_alone_unless_told_to_renew_it(
    both: Both, server: WandbServer
) -> None:
    first, renewed = server.sent("UpsertView2")
    assert "id" not in first
    assert renewed["id"] == server.views["nw-gradwatch-v"]["id"]
    # Each answers with the address, whether it wrote or not.
    assert both.printed.splitlines().count(f"{server.url}/acme/grads?nw=gradwatch") == 2
