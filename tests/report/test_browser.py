"""The report in a real browser: nothing loaded, no complaint, numbers under the pointer."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gradwatch import Coverage, Finding, FlowReading, StepRecord
from gradwatch.report import write_report
from gradwatch.tables import Table
from tests.report.records import fault, flow, write

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

INF, NAN = float("inf"), float("nan")
HOSTILE = "</script><script>window.broken = 1</script>&\"'<b>"
NAMES = (HOSTILE, *(f"blocks.{i}.attention.projection" for i in range(8)), "head")
STEPS = 50
BAD_STEP = 30


def tell() -> Iterator[StepRecord]:
    """Layer i has the norm 2^i × 1e-3, growing by a percent a step; the third goes bad once."""
    for number in range(STEPS):
        norms = [1e-3 * 2**i * 1.01**number for i in range(len(NAMES))]
        norms[2] = INF if number == BAD_STEP else norms[2]
        norms[5], norms[6] = 0.0, NAN
        known: FlowReading = flow(norms, NAMES)
        scalars = {"grad/norm": 1.0 + number, "grad/norm_clipped": 1.0, "grad/clip_rate": 0.9}
        yield StepRecord(step=number, log_step=number, scalars=scalars, flow=known)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("a run & more")
    table = Table(
        name="t", title=HOSTILE, step=1, columns=tuple(f"column {i}" for i in range(20)),
        rows=((HOSTILE, *(1.5 * i for i in range(19))),),
    )  # fmt: skip
    told: tuple[StepRecord | Finding | Table, ...] = (
        *tell(), fault(4, HOSTILE, summary=HOSTILE, evidence={"ratio": 1e-7}), table,
    )  # fmt: skip
    coverage = [Coverage(layer=name, state="hooked") for name in NAMES]
    record = write(told, folder / "gradwatch_runs" / "record.jsonl", coverage=coverage)
    return write_report(record)


@pytest.fixture
def page(chromium: "Chrome", report: Path) -> "Chrome":
    """Open the report afresh, as a wide light page."""
    drain(chromium)
    show_as(chromium, "light")
    widen(chromium, 1200)
    chromium.get(report.as_uri())
    wait_until(chromium, "return !document.querySelector('[data-picture]:not([data-ready])')")
    return chromium


def log_of(browser: "Chrome", kind: str) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = browser.get_log(kind)  # type: ignore[no-untyped-call]
    return entries


def drain(browser: "Chrome") -> list[dict[str, Any]]:
    return [json.loads(each["message"])["message"] for each in log_of(browser, "performance")]


def show_as(browser: "Chrome", scheme: str) -> None:
    wanted = {"features": [{"name": "prefers-color-scheme", "value": scheme}], "media": ""}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", wanted)


def widen(browser: "Chrome", pixels: int) -> None:
    size = {"width": pixels, "height": 900, "deviceScaleFactor": 1, "mobile": pixels < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def wait_until(browser: "Chrome", condition: str) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(browser, 20).until(lambda each: each.execute_script(condition))


def point_at(browser: "Chrome", picture: str, across: float, down: float) -> str:
    """Move the pointer to a place in the data of a picture; give what the page then says."""
    from selenium.webdriver import ActionChains

    place = """
        const frame = document.querySelector(`[data-picture="${arguments[0]}"]`);
        frame.scrollIntoView({block: "center"});
        const [l, t, r, b] = JSON.parse(document.getElementById("data").textContent)
            [arguments[0]].box;
        const size = frame.getBoundingClientRect();
        return [size.left + size.width * (l + (r - l) * arguments[1]),
                size.top + size.height * (t + (b - t) * arguments[2])];
    """
    x, y = browser.execute_script(place, picture, across, down)
    chain = ActionChains(browser, duration=0)
    pointer: Any = chain.w3c_actions.pointer_action
    pointer.move_to_location(round(x), round(y))
    chain.perform()
    return said(browser)


def said(browser: "Chrome") -> str:
    text: str = browser.execute_script(
        "const at = document.getElementById('readout'); return at.hidden ? '' : at.textContent"
    )
    return text


def test_it_opens_from_a_file_and_asks_for_nothing_else(page: "Chrome", report: Path) -> None:
    asked = [
        message["params"]["request"]["url"]
        for message in drain(page)
        if message["method"] == "Network.requestWillBeSent"
    ]
    own = [url for url in asked if not url.startswith("data:")]
    assert own == [report.as_uri()]
    assert log_of(page, "browser") == []


def test_names_that_are_markup_do_not_run(page: "Chrome") -> None:
    assert page.execute_script("return window.broken") is None
    assert HOSTILE in page.execute_script("return document.body.innerText")


def test_a_healthy_cell_says_layer_step_and_norm(page: "Chrome") -> None:
    text = point_at(page, "flow/heatmap", 20.5 / STEPS, 1.5 / len(NAMES))
    layer, steps, norm = text.split("\n")
    assert (layer, steps) == (NAMES[1], "step 20")
    assert float(norm.split(": ")[1]) == pytest.approx(2e-3 * 1.01**20, rel=0.01)


@pytest.mark.parametrize(
    ("column", "row", "expected"),
    [
        (BAD_STEP, 2, "NaN or Inf seen"),
        (3, 5, "gradient norm: 0\nexactly zero seen"),
        (3, 6, "no gradient"),
    ],
)
def test_a_cell_out_of_the_scale_says_why(
    page: "Chrome", column: int, row: int, expected: str
) -> None:
    across, down = (column + 0.5) / STEPS, (row + 0.5) / len(NAMES)
    text = point_at(page, "flow/heatmap", across, down)
    assert text == f"{NAMES[row]}\nstep {column}\n{expected}"


def test_a_layer_named_like_markup_is_read_out_as_it_is(page: "Chrome") -> None:
    assert point_at(page, "flow/heatmap", 0.5, 0.01).startswith(HOSTILE)


def test_lines_say_their_numbers(page: "Chrome") -> None:
    text = point_at(page, "flow/total_norm", 10.5 / STEPS, 0.5)
    assert text.split("\n") == [
        "step 10", "grad/norm: 11", "grad/norm_clipped: 1", "grad/clip_rate: 0.9",
    ]  # fmt: skip


def test_the_mountain_says_what_a_layer_did(page: "Chrome") -> None:
    lines = point_at(page, "flow/profile", 2.5 / len(NAMES), 0.5).split("\n")
    assert lines[:2] == [NAMES[2], "NaN or Inf seen"]
    assert lines[3] == "over the run: 0.004 to 0.00651"


def test_outside_of_the_data_nothing_is_said(page: "Chrome") -> None:
    assert point_at(page, "flow/heatmap", 0.5, 0.5)
    assert point_at(page, "flow/heatmap", -0.05, 0.5) == ""


def test_the_keyboard_reads_a_picture_too(page: "Chrome") -> None:
    from selenium.webdriver.common.keys import Keys

    frame = page.find_element("css selector", "[data-picture='flow/heatmap']")
    frame.send_keys(Keys.HOME)
    frame.send_keys(Keys.ARROW_RIGHT)
    frame.send_keys(*[Keys.ARROW_UP] * len(NAMES))
    frame.send_keys(Keys.ARROW_DOWN)
    assert said(page).split("\n")[:2] == [NAMES[1], "step 1"]
    frame.send_keys(Keys.ESCAPE)
    assert said(page) == ""


def look(browser: "Chrome") -> tuple[str, str]:
    """Give the colour of the page and which of the two pictures shows."""
    shown = """
        const image = [...document.querySelectorAll(".frame img")].find((i) => i.offsetWidth);
        return [getComputedStyle(document.body).backgroundColor, image.className];
    """
    colour, image = browser.execute_script(shown)
    return colour, image


def test_page_and_pictures_follow_the_system_and_the_button_overrules_it(page: "Chrome") -> None:
    light, dark = ("rgb(255, 255, 255)", "light"), ("rgb(21, 23, 28)", "dark")
    assert look(page) == light
    show_as(page, "dark")
    assert look(page) == dark
    button = page.find_element("id", "theme")
    for label, expected in (("light", light), ("dark", dark), ("system", dark)):
        button.click()
        assert (button.text, look(page)) == (f"Theme: {label}", expected)


def test_paper_is_white_whatever_the_screen_is(page: "Chrome") -> None:
    show_as(page, "dark")
    page.find_element("id", "theme").click()
    page.find_element("id", "theme").click()
    wanted = {"media": "print", "features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", wanted)
    assert look(page) == ("rgb(255, 255, 255)", "light")


@pytest.mark.parametrize("pixels", [320, 390, 800])
def test_a_narrow_page_does_not_scroll_sideways(page: "Chrome", pixels: int) -> None:
    widen(page, pixels)
    widths = "return [document.documentElement.scrollWidth, innerWidth]"
    assert page.execute_script(widths) == [pixels, pixels]


def test_paper_shows_what_the_screen_has_folded(page: "Chrome") -> None:
    count = "return document.querySelectorAll('details:not([open])').length"
    folded = page.execute_script(count)
    assert folded > 0
    page.execute_script("dispatchEvent(new Event('beforeprint'))")
    assert page.execute_script(count) == 0
    page.execute_script("dispatchEvent(new Event('afterprint'))")
    assert page.execute_script(count) == folded


def test_a_sentence_in_a_wide_table_is_not_broken_at_each_word(
    chromium: "Chrome", tmp_path: Path
) -> None:
    sentence = "kernels run on CUDA devices, not on 'cpu': move model and batch with .to('cuda')"
    columns = ("layer", "reason", *(f"a column of numbers {i}" for i in range(20)), "none")
    row = ("stem", sentence, *(1.5 * i for i in range(20)), None)
    table = Table(name="t", title="wide", step=1, columns=columns, rows=(row,))
    record = write((table,), tmp_path / "gradwatch_runs" / "record.jsonl")
    widen(chromium, 1200)
    chromium.get(write_report(record).as_uri())
    cell = chromium.find_element("css selector", "#tables td.long")
    assert cell.text == sentence
    assert cell.size["width"] >= 300
    heads = [each.text for each in chromium.find_elements("css selector", "#tables th")]
    assert heads == list(columns[:-1])
