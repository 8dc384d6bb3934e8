"""A ready-made page of W&B: the pictures on top, one panel a family below, faults and memory last.

It is a saved view of its own beside the project's other ones. Its name is fixed, so that a second
run finds the page of the first, with whatever the user has changed there.
"""

import importlib.util
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gradwatch.errors import ConfigurationError
from gradwatch.sinks.rows import X_AXIS

if TYPE_CHECKING:
    from wandb_workspaces.reports.v2.interface import LinePlot, MediaBrowser
    from wandb_workspaces.workspaces import Section, Workspace

    Panel = LinePlot | MediaBrowser

TITLE = "gradwatch"
VIEW = f"nw-{TITLE}-v"
NO_EXTRA = "the W&B workspace needs wandb-workspaces: pip install 'gradwatch[workspace]'"
COLUMNS = (
    "summary:flow/verdict",
    "summary:flow/worst_layer",
    "summary:grad/first_non_finite_step",
)


class Lines(NamedTuple):
    """One panel of lines: every metric a pattern matches.

    Attributes:
        title: What stands above it.
        pattern: Regular expression over metric keys, held to their beginning: ``grad/norm`` is
            also what stands inside ``act_grad/norm1``.
        unit: Label of the y axis.
        log: Whether the y axis is logarithmic.
    """

    title: str
    pattern: str
    unit: str
    log: bool = True


class Part(NamedTuple):
    """One section of the page.

    Attributes:
        name: What stands above it.
        pictures: Keys of images, a panel each.
        lines: Panels of lines.
        tables: Keys of tables, a panel each.
    """

    name: str
    pictures: tuple[str, ...] = ()
    lines: tuple[Lines, ...] = ()
    tables: tuple[str, ...] = ()


# In the order people look: is it well, where does it die, why, what does it cost.
PARTS = (
    Part("Pictures", pictures=("flow/heatmap", "flow/profile", "flow/update_ratio",
                               "flow/total_norm")),
    Part(
        "Gradient flow",
        lines=(
            Lines("total norm, before and after clipping", "^grad/norm.*", "gradient norm"),
            Lines("gradient norm by layer", "^grad_norm/.*", "gradient norm"),
            Lines("update / weight by layer", "^update_ratio/.*", "‖Δθ‖ / ‖θ‖"),
            Lines("gradient at the layers' outputs", "^act_grad/.*", "gradient norm"),
            Lines("weight norm by layer", "^weight_norm/.*", "‖θ‖"),
            Lines("gradient norm by depth (big models)", "^grad_norm_depth/.*", "gradient norm"),
        ),
    ),
    Part(
        "Faults",
        lines=(
            Lines("steps with NaN or Inf, steps skipped", "^grad/(non_finite|skipped).*", "steps",
                  log=False),
            Lines("clipped steps", "^grad/clip_rate.*", "share of steps", log=False),
            Lines("loss scale", "^grad/loss_scale.*", "factor"),
        ),
        pictures=("flow/loss_scale", "graph/chain"),
        tables=("flow/findings",),
    ),
    Part(
        "Learning rate",
        pictures=("lr/signal",),
        lines=(
            Lines("SNR ‖θ‖ / ‖g‖", "^lr/snr.*", "ratio"),
            Lines("factor on the rate", "^lr/factor.*", "factor"),
            Lines("effective rate", "^lr/effective.*", "rate"),
        ),
    ),
    Part(
        "Memory",
        pictures=("mem/accelerator", "mem/process"),
        lines=(
            Lines("level and peak", "^mem/(allocated|reserved|cached|process|(process_)?peak)_MiB",
                  "MiB", log=False),
            Lines("change by phase", "^mem/.*_(forward|backward|step)_MiB", "MiB", log=False),
        ),
    ),
    Part(
        "Speed",
        pictures=("roofline/chart", "fused/chart"),
        tables=("roofline/table", "roofline/phases", "roofline/kernels", "fused/trials"),
    ),
)  # fmt: skip


def require_workspaces() -> None:
    """Make sure that wandb-workspaces is there.

    Raises:
        ConfigurationError: If it is not, with the line that installs it.
    """
    if importlib.util.find_spec("wandb_workspaces") is None:
        raise ConfigurationError(NO_EXTRA)


def make_workspace(entity: str, project: str) -> "Workspace":
    """Make the page without a server.

    Args:
        entity: User or team.
        project: Name of the project.

    Raises:
        ConfigurationError: If wandb-workspaces is not installed.
    """
    require_workspaces()
    from wandb_workspaces import workspaces as ws

    page = ws.Workspace(
        entity=entity,
        project=project,
        name=TITLE,
        sections=[_section(part) for part in PARTS],
        settings=ws.WorkspaceSettings(x_axis=X_AXIS, max_runs=10),
        runset_settings=ws.RunsetSettings(pinned_columns=list(COLUMNS)),
    )
    page._internal_name = VIEW  # noqa: SLF001 - a name of chance would be a new page each run
    return page


def spec_of(page: "Workspace") -> dict[str, Any]:
    """Give a page as W&B stores it: plain containers, ready for JSON.

    Args:
        page: The page.
    """
    view = page._to_model()  # noqa: SLF001 - the library has no other way to its spec
    spec: dict[str, Any] = view.spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    return spec


def write_workspace(entity: str, project: str, path: Path) -> None:
    """Write the page's spec to a file, without a server or a login.

    Args:
        entity: User or team.
        project: Name of the project.
        path: The file; its folder is made.

    Raises:
        ConfigurationError: If wandb-workspaces is not installed.
    """
    page = make_workspace(entity, project)
    stored = {"entity": entity, "project": project, "displayName": TITLE, "name": VIEW}
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({**stored, "spec": spec_of(page)}, indent=2, ensure_ascii=False)
    path.write_text(f"{text}\n", encoding="utf-8")


def save_workspace(entity: str, project: str, *, renew: bool = False) -> str:
    """Save the page to the project, unless it is there already.

    Args:
        entity: User or team.
        project: Name of the project.
        renew: Write it over the one that is there.

    Returns:
        Its address.

    Raises:
        ConfigurationError: If wandb-workspaces is not installed.
    """
    page = make_workspace(entity, project)
    from wandb_workspaces.workspaces import internal

    known = _find(entity, project)
    if known is None or renew:
        view = page._to_model()  # noqa: SLF001 - `save` prints into the progress bar
        view.id = known or ""
        internal.upsert_view2(view)
    return str(page.url)


def _find(entity: str, project: str) -> str | None:
    """Give the identity of the page that is there; None where there is none."""
    from wandb_workspaces.workspaces import internal
    from wandb_workspaces.workspaces.errors import SpecVersionError

    try:
        found = internal.get_view_dict(entity, project, TITLE)
    except SpecVersionError:
        return ""
    except ValueError as error:
        if str(error).startswith("Workspace"):
            return None
        raise
    return str(found["id"])


def _section(part: Part) -> "Section":
    from wandb_workspaces import workspaces as ws
    from wandb_workspaces.reports.v2 import interface as wr

    panels: list[Any] = [_browser(key) for key in part.pictures]
    panels += [_plot(lines) for lines in part.lines]
    panels += [wr.WeavePanelSummaryTable(table_name=key) for key in part.tables]
    layout = ws.SectionLayoutSettings(columns=2, rows=(len(panels) + 1) // 2)
    return ws.Section(name=part.name, panels=panels, is_open=True, layout_settings=layout)


def _browser(key: str) -> "MediaBrowser":
    from wandb_workspaces.reports.v2 import interface as wr

    return wr.MediaBrowser(title=key, media_keys=[key], num_columns=1)


def _plot(lines: Lines) -> "LinePlot":
    from wandb_workspaces.reports.v2 import interface as wr

    return wr.LinePlot(
        title=lines.title,
        x=X_AXIS,
        metric_regex=lines.pattern,
        log_y=lines.log,
        title_x="step",
        title_y=lines.unit,
    )
