"""When a picture is worth the time it takes."""

FIRST_PICTURE = 16
MOST_PICTURES_FOR_FINDINGS = 8


class PictureClock:
    """Say when a picture is worth its time: at the 16th, 32nd, 64th … record and after findings.

    A run of n records draws about log2(n / 8) times, and eight more for findings at most.
    """

    def __init__(self) -> None:
        """Start before the first record."""
        self._records = 0
        self._next = FIRST_PICTURE
        self._asked = False
        self._left = MOST_PICTURES_FOR_FINDINGS

    def ask(self) -> None:
        """Want a picture of the next record, because of a finding."""
        self._asked = self._left > 0

    def tick(self) -> bool:
        """Count a record and say whether to draw it."""
        self._records += 1
        doubled = self._records >= self._next
        due = doubled or self._asked
        self._left -= self._asked
        self._next *= 1 + doubled
        self._asked = False
        return due
