"""The table of symptoms: what is seen, what is likely behind it, how it was checked, what to do."""

from gradwatch.symptoms.part import SymptomWatch
from gradwatch.symptoms.read import budget_of, devices_of, half_copy_only, loading_of
from gradwatch.symptoms.repeat import run_twice
from gradwatch.symptoms.row import Row, Seen
from gradwatch.symptoms.signs import (
    Budget,
    Fused,
    Loading,
    Precision,
    Repeat,
    Signs,
)
from gradwatch.symptoms.table import SYMPTOMS, find_symptoms

__all__ = [
    "SYMPTOMS",
    "Budget",
    "Fused",
    "Loading",
    "Precision",
    "Repeat",
    "Row",
    "Seen",
    "Signs",
    "SymptomWatch",
    "budget_of",
    "devices_of",
    "find_symptoms",
    "half_copy_only",
    "loading_of",
    "run_twice",
]
