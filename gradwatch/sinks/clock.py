"""When a picture is worth the time it takes."""

FIRST_PICTURE = 16
MOST_PICTURES_FOR_FINDINGS = 8
FREE_SECONDS = 5.0
SECONDS_PER_STEP = 0.001


class PictureClock:
    """Say when a picture is worth its time: at the 16th, 32nd, 64th … record and after findings.

    A run of n records draws about log2(n / 8) times, and eight more for findings at most. All
    pictures together take at most five seconds and a millisecond of each step: where drawing
    is slow, the next picture waits until the steps have paid for it.
    """

    def __init__(self) -> None:
        """Start before the first record."""
        self._records = 0
        self._next = FIRST_PICTURE
        self._asked = False
        self._left = MOST_PICTURES_FOR_FINDINGS
        self._spent_seconds = self._last_seconds = 0.0

    def ask(self) -> None:
        """Want a picture of the next record, because of a finding."""
        self._asked = self._left > 0

    def tick(self, step: int) -> bool:
        """Count a record and say whether to draw it.

        Args:
            step: Optimizer steps done so far.
        """
        self._records += 1
        doubled = self._records >= self._next
        paid = FREE_SECONDS + SECONDS_PER_STEP * step
        if not (doubled or self._asked) or self._spent_seconds + self._last_seconds > paid:
            return False
        self._left -= self._asked
        while self._next <= self._records:
            self._next *= 2
        self._asked = False
        return True

    def spend(self, seconds: float) -> None:
        """Take in what a drawing took.

        Args:
            seconds: Time between its begin and its end.
        """
        self._spent_seconds += seconds
        self._last_seconds = seconds
