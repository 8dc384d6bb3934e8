"""The wheel, built through the source distribution and installed alone, is what users get."""

import json
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).parents[2]
PROMISED = (Path(__file__).parent / "public_names.txt").read_text().split()

# Runs isolated in the clean environment: neither the checkout nor PYTHONPATH can help it.
PROBE = """
import importlib, json
names = {}
for package in ("gradwatch", "gradwatch.callbacks"):
    module = importlib.import_module(package)
    names[package] = {name: repr(getattr(module, name)) for name in module.__all__}
    print(module.__file__)
print(json.dumps(names))
"""


def run(*arguments: str | Path) -> str:
    done = subprocess.run(
        [*map(str, arguments)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build source distribution and wheel without fetching anything."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def clean_python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make an environment in which gradwatch comes from the wheel and from nowhere else.

    Its dependencies are borrowed from this environment by a path file, which spares a second
    download of torch. A path file is not read recursively: an editable install stays behind.
    """
    home = tmp_path_factory.mktemp("clean")
    venv.create(home, with_pip=False)
    python = home / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", wheel)
    (packages,) = home.glob("lib/python*/site-packages")
    (packages / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def test_only_the_package_and_its_metadata_stand_at_the_top(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        tops = {PurePosixPath(name).parts[0] for name in archive.namelist()}
    version = wheel.name.split("-")[1]
    assert tops == {"gradwatch", f"gradwatch-{version}.dist-info"}


@pytest.mark.parametrize(
    "name",
    [
        "gradwatch/__init__.py",
        "gradwatch/callbacks/__init__.py",
        "gradwatch/py.typed",
        "gradwatch/report/page.html",
        "gradwatch/report/report.css",
        "gradwatch/report/report.js",
    ],
)
def test_the_wheel_holds(name: str, wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        assert name in archive.namelist()


def test_every_source_file_is_in_the_wheel(wheel: Path) -> None:
    on_disk = {path.relative_to(ROOT) for path in (ROOT / "gradwatch").rglob("*.py")}
    on_disk |= {
        Path("gradwatch") / path.relative_to(ROOT) for path in (ROOT / "callbacks").rglob("*.py")
    }
    with zipfile.ZipFile(wheel) as archive:
        shipped = {Path(name) for name in archive.namelist() if name.endswith(".py")}
    assert shipped == on_disk


def test_the_installed_wheel_offers_the_promised_names_from_its_own_place(
    clean_python: Path,
) -> None:
    *places, names = run(clean_python, "-I", "-c", PROBE).splitlines()
    home = clean_python.parents[1]
    assert all(Path(place).is_relative_to(home) for place in places)
    offered = [f"{package}.{name}" for package, all_ in json.loads(names).items() for name in all_]
    assert sorted(offered) == PROMISED
