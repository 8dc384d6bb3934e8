"""The findings of the report, each with its evidence, cause, remedy and chain."""

from collections.abc import Mapping, Sequence

from gradwatch.findings import OWN_LINES, Evidence
from gradwatch.health import say_rule
from gradwatch.report.markup import Html, tag
from gradwatch.report.verdict import Group

OPEN = 3
# What follows is shut away together: the first findings tell the story.
MOST_IN_SIGHT = 12
MOST = 100
# Evidence that is code or a file, by the name of its line.
AS_CODE = frozenset({"written", "bundle"})


def show_findings(groups: Sequence[Group]) -> Html:
    """Give one card for each rule and layer, the gravest first; those after the third are shut.

    Args:
        groups: Findings, joined and in order.
    """
    cards = [_card(one, number) for number, one in enumerate(groups[:MOST])]
    shown = cards[:MOST_IN_SIGHT] or [tag("p", "No rule has found anything.", class_="quiet")]
    rest = _rest(cards[MOST_IN_SIGHT:], len(groups) - len(cards))
    return tag("section", tag("h2", "Findings"), *shown, rest, id="findings")


def _rest(cards: Sequence[Html], hidden: int) -> Html:
    if not cards:
        return Html()
    more = tag("p", f"… and {hidden:,} more in the record", class_="quiet") if hidden else Html()
    return tag("details", tag("summary", f"{len(cards) + hidden:,} more findings"), *cards, more)


def _card(one: Group, number: int) -> Html:
    finding = one.shown
    rank = f" on rank {finding.rank}" if finding.rank else ""
    head = tag(
        "summary",
        tag("span", finding.severity, class_=f"badge {finding.severity}"),
        tag("b", say_rule(finding.rule)),
        tag("code", finding.layer),
        tag("span", f"step {finding.step:,}{rank}", class_="quiet"),
        *([tag("span", f"× {one.times:,}", class_="count")] if one.times > 1 else []),
    )
    return tag(
        "details",
        head,
        tag("p", finding.summary, class_="summary"),
        tag("dl", *_rows(one), class_="finding"),
        class_=f"card {finding.severity}",
        open=number < OPEN,
    )


def _rows(one: Group) -> list[Html]:
    finding = one.shown
    rows = [("Cause", finding.cause), ("Remedy", finding.remedy)]
    rows += [("Seen", _times(one))] if one.times > 1 else []
    shown = [_row(name, tag("span", text)) for name, text in rows if text]
    return [*shown, *_sentences(finding.evidence), *_numbers(finding.evidence)]


def _times(one: Group) -> str:
    return f"{one.times:,} times, the last at step {one.last_step:,}"


def _sentences(evidence: Mapping[str, Evidence]) -> list[Html]:
    told = [(key, name) for key, name in OWN_LINES.items() if evidence.get(key)]
    return [_row(name.capitalize(), _sentence(name, str(evidence[key]))) for key, name in told]


def _sentence(name: str, text: str) -> Html:
    if name == "chain":
        return tag("ol", *(tag("li", link) for link in text.split(" → ")), class_="chain")
    if name == "bundle":
        replay = f"gradwatch replay {text} --model package.module:factory"
        return tag("span", tag("code", text), " — look again with ", tag("code", replay))
    return tag("code" if name in AS_CODE else "span", text)


def _numbers(evidence: Mapping[str, Evidence]) -> list[Html]:
    plain = {name: value for name, value in evidence.items() if name not in OWN_LINES}
    items = [
        tag("li", tag("span", f"{name} ", class_="quiet"), tag("b", _say(value)))
        for name, value in plain.items()
    ]
    return [_row("Evidence", tag("ul", *items, class_="evidence"))] if items else []


def _row(name: str, value: Html) -> Html:
    return tag("div", tag("dt", name), tag("dd", value))


def _say(value: Evidence) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
