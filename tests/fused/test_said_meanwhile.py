"""A trial may last minutes: a person at the terminal sees each change as it is decided."""

import pytest

from gradwatch import FusedBackwardOptions
from gradwatch.callbacks import FusedBackward
from tests.fused.lab import QUICK, Offers, SlowNorm, quick
from tests.fused.test_in_training import Slow
from tests.kit import build, fit


@pytest.mark.parametrize("mode", ["force", "advise"])
def test_each_change_is_said_before_the_table(
    mode: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {**QUICK, "mode": mode, "after_steps": 1, "providers": (Offers(SlowNorm, quick),)}
    callback = FusedBackward(FusedBackwardOptions(**options))
    fit(build(Slow), [callback], max_steps=3)
    said = capsys.readouterr().out
    waits = said.find("training waits, at most 300 s")
    decided = said.find("gradwatch: LayerNorm by hand (lab, 1 layer): kept, forced")
    if mode == "advise":
        assert (waits, decided) == (-1, -1)
    else:
        assert 0 <= waits < decided < said.find("Fused layers tried at step 1")
