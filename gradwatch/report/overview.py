"""The head of the report: the verdict, and what one asks next."""

from collections import Counter
from datetime import datetime

from gradwatch.findings import Severity
from gradwatch.health import Verdict
from gradwatch.report.markup import Html, join, tag
from gradwatch.report.story import Story
from gradwatch.sinks.record import FORMAT
from gradwatch.words import counted

SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")
NONE = "none"


def show_verdict(story: Story, verdict: Verdict) -> Html:
    """Give the verdict, the facts behind it and what a reader must know of the record.

    Args:
        story: The run.
        verdict: What it comes to.
    """
    facts = [
        tag("div", tag("dt", name), tag("dd", value)) for name, value in _facts(story, verdict)
    ]
    notes = [tag("li", note) for note in _notes(story)]
    return tag(
        "section",
        tag("h2", verdict.headline, class_="headline"),
        tag("p", verdict.sentence, class_="sentence"),
        tag("dl", *facts, class_="facts"),
        tag("ul", *notes, class_="notes") if notes else Html(),
        id="verdict",
        class_=f"verdict {verdict.state}",
    )


def say_time(iso: str) -> str:
    """Write a time of the record as people read it; what is none, as it stands.

    Args:
        iso: ISO 8601.

    Examples:
        >>> say_time("2026-11-29T21:35:00+00:00")
        '2026-11-29 21:35:00 UTC'
    """
    try:
        moment = datetime.fromisoformat(iso)
    except ValueError:
        return iso
    return f"{moment:%Y-%m-%d %H:%M:%S} {moment.tzname() or ''}".rstrip()


def _facts(story: Story, verdict: Verdict) -> list[tuple[str, str]]:
    bad = story.first_bad_step
    return [
        ("Run", _how_it_ended(story)),
        ("Steps seen", _steps(story)),
        ("Worst layer", verdict.worst_layer or NONE),
        ("First non-finite step", NONE if bad is None else f"{bad:,}"),
        ("Findings", _counts(story)),
    ]


def _how_it_ended(story: Story) -> str:
    if story.ended:
        return f"ended {say_time(story.ended)}"
    return f"still running or crashed; last written {say_time(story.written.isoformat())}"


def _steps(story: Story) -> str:
    if story.first_step is None:
        return NONE
    span = f"{story.first_step:,} to {story.last_step:,}, {story.records:,} of them recorded"
    resumed = ", ".join(f"{step:,}" for step in story.starts[1:])
    return f"{span}; resumed at {resumed}" if resumed else span


def _counts(story: Story) -> Html | str:
    count = Counter(finding.severity for finding in story.findings)
    told = [
        tag("span", counted(count[name], name), class_=f"badge {name}")
        for name in SEVERITIES
        if count[name]
    ]
    return join(*told, by=" ") if told else NONE


def _notes(story: Story) -> list[str]:
    notes = []
    if story.runs > 1:
        notes.append(
            f"The record holds {story.runs} runs; this is number {story.number}. "
            "Another one: gradwatch report --run NUMBER."
        )
    if story.unreadable:
        notes.append(
            f"{_lines(story.unreadable)} cut off, as a crash or a full disk leaves them; "
            "everything else was read."
        )
    if story.records and len(story.starts) < len(story.headers):
        notes.append("One of the starts of this run recorded no step.")
    if any(header.get("format", 0) > FORMAT for header in story.headers):
        notes.append("A newer gradwatch wrote this record: this one may not show all of it.")
    return notes


def _lines(count: int) -> str:
    return f"{count:,} line{'s' * (count > 1)} of the record {'are' if count > 1 else 'is'}"
