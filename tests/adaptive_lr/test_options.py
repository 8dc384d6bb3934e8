"""Options that cannot be meant are refused where they are written."""

from typing import Any

import pytest

from gradwatch.adaptive_lr import AdaptiveLearningRateOptions
from gradwatch.errors import ConfigurationError


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"target": 0.0}, "target must be a positive, finite number; got 0.0"),
        ({"target": float("nan")}, "target must be a positive"),
        ({"floor": -1.0}, "floor must be a positive"),
        ({"patience": 0}, "patience must be a positive"),
        ({"rule": "invers"}, "nearest: 'inverse'"),
        ({"bounds": (2.0, 0.5)}, "bounds must be two positive, finite numbers, the smaller first"),
        ({"bounds": (0.0, 1.0)}, "bounds must be two positive"),
        ({"bounds": (0.5,)}, "bounds must be two positive"),
        ({"low": 200.0}, "low and high must be two positive"),
        ({"averaging": 1.0}, r"averaging must lie in \[0, 1\)"),
        ({"averaging": float("nan")}, "averaging must lie"),
        ({"warmup_steps": -1}, "warmup_steps must be 0"),
    ],
)
def test_nonsense_is_refused_with_the_options_name(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        AdaptiveLearningRateOptions(**wrong)
