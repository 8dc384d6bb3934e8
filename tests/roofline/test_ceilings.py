"""What the machine can do is measured once and remembered."""

import json
from pathlib import Path

import pytest
import torch

from gradwatch.roofline import ceilings as measuring
from gradwatch.roofline import measure_ceilings
from gradwatch.roofline.remembered import cache_file, recall, remember


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return cache_file()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make measuring quick; the numbers then say nothing about the machine."""
    monkeypatch.setattr(measuring, "COPY_BYTES", {"cpu": 1 << 16})
    monkeypatch.setattr(measuring, "MATRIX_SIZES", {"cpu": (16,)})


@pytest.mark.usefixtures("small")
def test_the_second_time_nothing_is_measured(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = measure_ceilings()
    monkeypatch.setattr(measuring, "_timed", lambda *_: pytest.fail("measured again"))
    assert measure_ceilings() == first


@pytest.mark.usefixtures("small")
def test_another_dtype_is_added_to_what_is_known(empty: Path) -> None:
    first = measure_ceilings()
    both = measure_ceilings(dtypes=("float32", "bfloat16"))
    assert set(both.matrix_flops_per_second) == {"float32", "bfloat16"}
    assert both.copy_bytes_per_second == first.copy_bytes_per_second


@pytest.mark.usefixtures("small")
def test_asked_to_it_measures_again(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measure_ceilings()
    monkeypatch.setattr(measuring, "_timed", lambda *_: 0.5)
    again = measure_ceilings(refresh=True)
    assert again.copy_bytes_per_second == 2 * (1 << 16) / 0.5
    assert measure_ceilings().copy_bytes_per_second == again.copy_bytes_per_second


@pytest.mark.usefixtures("small")
def test_other_threads_are_another_machine(empty: Path) -> None:
    threads = torch.get_num_threads()
    measure_ceilings()
    try:
        torch.set_num_threads(threads + 1)
        measure_ceilings()
    finally:
        torch.set_num_threads(threads)
    assert len(json.loads(empty.read_text())) == 2


@pytest.mark.usefixtures("small")
def test_measuring_draws_no_random_number_and_keeps_the_modes(empty: Path) -> None:
    before = torch.get_rng_state()
    with torch.autocast("cpu", torch.bfloat16):
        measure_ceilings()
        assert torch.is_autocast_enabled("cpu")
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.is_grad_enabled()


@pytest.mark.usefixtures("small")
def test_a_type_without_plain_products_is_left_out(empty: Path) -> None:
    both = measure_ceilings(dtypes=("float32", "bool"))
    assert set(both.matrix_flops_per_second) == {"float32"}


@pytest.mark.usefixtures("small")
def test_the_users_own_default_type_changes_no_rate(
    empty: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied: list[int] = []
    copy = torch.Tensor.copy_

    def copies(target: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        copied.append(target.nbytes)
        return copy(target, source)

    monkeypatch.setattr(torch.Tensor, "copy_", copies)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        measure_ceilings()
    finally:
        torch.set_default_dtype(before)
    assert set(copied) == {1 << 16}


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"cpu": {"copy": -1}}', '{"cpu": 3}'])
def test_a_damaged_file_is_as_good_as_none(empty: Path, content: str) -> None:
    empty.parent.mkdir(parents=True)
    empty.write_text(content)
    assert recall("cpu") == {}
    remember("cpu", {"copy": 2.0})
    assert recall("cpu") == {"copy": 2.0}


def test_a_folder_that_cannot_be_written_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    remember("cpu", {"copy": 2.0})
    assert recall("cpu") == {}
