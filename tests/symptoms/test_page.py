"""The page says what the table says."""

import importlib.util
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_is_written_from_the_table_of_today() -> None:
    spec = importlib.util.spec_from_file_location("symptoms_page", DOCS / "symptoms.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.page() == (DOCS / "symptoms.md").read_text(encoding="utf-8")
