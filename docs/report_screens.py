"""Take the pictures of docs/report.md: train, write the reports, open them in Chromium.

Run: PYTHONPATH=examples python docs/report_screens.py (needs chromium and chromium-driver).
"""

# ruff: noqa: INP001 - a script

import contextlib
import io
import shutil
import tempfile
from pathlib import Path

import torch
from digits import Digits, images, quiet
from PIL import Image
from selenium.webdriver import ActionChains, Chrome, ChromeOptions, ChromeService

from gradwatch import NonFiniteGradientError
from gradwatch.callbacks import GradWatch
from gradwatch.report import write_report

ROOT = Path(__file__).absolute().parents[1]
IMAGES = ROOT / "docs" / "images"
COLOURS = 256
PHONE_PIXELS = 390


def train(folder: Path, window: int, steps: int) -> Path:
    """Train on digits, with the demo's bug where the window is narrow; write the report."""
    from lightning.pytorch import Trainer

    torch.manual_seed(0)
    trainer = Trainer(
        callbacks=[GradWatch(console=False)], max_steps=steps, log_every_n_steps=2,
        default_root_dir=folder, logger=False, accelerator="cpu", enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    with contextlib.suppress(NonFiniteGradientError):
        trainer.fit(Digits(window=window), images())
    report = write_report(folder).absolute()
    # The folders of whoever takes the pictures are nobody's business.
    text = report.read_text()
    for place in (folder.parent, ROOT):
        text = text.replace(f"{place}/", "")
    report.write_text(text)
    return report


def open_browser() -> Chrome:
    """Start Chromium without a window."""
    options = ChromeOptions()
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(flag)
    # Told where its driver is, Selenium looks for none on the network.
    return Chrome(options=options, service=ChromeService(shutil.which("chromedriver")))


def view(
    browser: Chrome, report: Path, section: str, *, width: int = 1000, height: int = 720,
    scheme: str = "light",
) -> None:  # fmt: skip
    """Open a report at one of its sections."""
    size = {
        "width": width,
        "height": height,
        "deviceScaleFactor": 1,
        "mobile": width == PHONE_PIXELS,
    }
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    browser.get(report.as_uri())
    browser.execute_script("document.getElementById(arguments[0]).scrollIntoView()", section)


def point(browser: Chrome, picture: str) -> None:
    """Lay the pointer a little above the middle of a picture."""
    frame = browser.find_element("css selector", f"[data-picture='{picture}'][data-ready]")
    ActionChains(browser).move_to_element_with_offset(frame, 60, -40).perform()


def save(browser: Chrome, name: str) -> None:
    """Keep what is in sight, in few colours."""
    shot = Image.open(io.BytesIO(browser.get_screenshot_as_png())).convert("RGB")
    few = shot.quantize(COLOURS, dither=Image.Dither.NONE)
    few.save(IMAGES / f"report-{name}.png", optimize=True)


def main() -> None:
    """Take them all."""
    quiet()
    with tempfile.TemporaryDirectory() as folder:
        healthy = train(Path(folder, "healthy"), 8, 240)
        stopped = train(Path(folder, "stopped"), 2, 240)
        browser = open_browser()
        browser.implicitly_wait(5)
        view(browser, stopped, "verdict", height=760)
        save(browser, "verdict")
        view(browser, healthy, "pictures", height=640)
        point(browser, "flow/heatmap")
        save(browser, "pictures")
        view(browser, healthy, "pictures", height=1180, scheme="dark")
        save(browser, "dark")
        for section in ("tables", "coverage"):
            view(browser, healthy, section, height=640)
            save(browser, section)
        view(browser, stopped, "verdict", width=PHONE_PIXELS, height=844)
        save(browser, "phone")
        browser.quit()


if __name__ == "__main__":
    main()
