"""One real browser for all pages, without a window and without a network: Chromium or Chrome."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

# Chrome stands first: where both are installed the driver is Chrome's.
BROWSERS = ("google-chrome", "chromium")
DRIVER = "chromedriver"
QUIET = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--window-size=1200,900",
)


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[Chrome]":
    """Start the browser; where there is none the test is skipped, but never in CI."""
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    driver_program = shutil.which(DRIVER)
    if program is None or driver_program is None:
        message = "needs a browser and its driver: apt-get install chromium chromium-driver"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    driver = _start(program, driver_program, tmp_path_factory.mktemp("profile"))
    yield driver
    driver.quit()


def _start(program: str, chromedriver: str, profile: Path) -> "Chrome":
    from selenium.webdriver import Chrome, ChromeOptions, ChromeService

    options = ChromeOptions()
    options.binary_location = program
    for flag in (*QUIET, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return Chrome(options=options, service=ChromeService(chromedriver))
