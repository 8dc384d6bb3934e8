"""One self-contained HTML file: no network, no script or style but its own.

The page forbids itself the network and every script and style other than the two whose hashes
it names, so that not even a mistake in the escaping would let a layer's name run.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from datetime import datetime, timezone
from importlib import metadata, resources
from string import Template
from typing import Any

from gradwatch.health import Verdict
from gradwatch.host import RUNS
from gradwatch.report.faults import show_findings
from gradwatch.report.figures import draw, hover_data, show_figures
from gradwatch.report.listing import show_configuration, show_coverage, show_tables
from gradwatch.report.markup import Html, join, tag
from gradwatch.report.overview import say_time, show_verdict
from gradwatch.report.story import Story
from gradwatch.report.verdict import group, judge

SECTIONS = ("verdict", "findings", "pictures", "tables", "coverage", "configuration")
# In a script's data these would end it or begin a comment.
UNSAFE = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})


def render(story: Story) -> str:
    """Give the report of a run as the text of an HTML file.

    Args:
        story: The run.
    """
    figures, groups, verdict = draw(story), group(story.findings), judge(story)
    sections = [
        show_verdict(story, verdict),
        show_findings(groups),
        show_figures(figures, story.history),
        show_tables(story.tables.values()),
        show_coverage(story),
        show_configuration(story),
    ]
    return _fill(story, verdict, join(*sections, by="\n"), hover_data(figures))


def _fill(story: Story, verdict: Verdict, main: Html, data: Mapping[str, Any]) -> str:
    style, script = _asset("report.css"), _asset("report.js")
    version = metadata.version("gradwatch")
    now = say_time(datetime.now(timezone.utc).isoformat())
    return Template(_asset("page.html")).substitute(
        version=version,
        title=join(f"{verdict.headline}: {_name(story)} – gradwatch"),
        heading=join(f"gradwatch · {_name(story)}"),
        links=join(*_links(main), by=" "),
        main=main,
        footer=join(f"Made by gradwatch {version} at {now}. Nothing here needs a network."),
        data=as_data(data),
        style=style,
        style_hash=_hash(style),
        script=script,
        script_hash=_hash(script),
    )


def as_data(data: object) -> str:
    r"""Give JSON that can stand in a script element whatever text is in it.

    Args:
        data: What JSON can say.

    Examples:
        >>> as_data("</script>")
        '"\\u003c/script\\u003e"'
    """
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False).translate(UNSAFE)


def _links(main: str) -> list[Html]:
    shown = [name for name in SECTIONS if f'id="{name}"' in main]
    return [tag("a", name.capitalize(), href=f"#{name}") for name in shown]


def _name(story: Story) -> str:
    """Name a run by the folder it logged to, and by its record where several lie there."""
    folder = story.path.absolute().parent
    name = (folder.parent if folder.name == RUNS else folder).name or str(folder)
    return name if story.path.stem == "record" else f"{name} · {story.path.stem}"


def _asset(name: str) -> str:
    return resources.files("gradwatch.report").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")
    return f"sha256-{digest}"
