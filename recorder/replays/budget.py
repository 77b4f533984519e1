"""Budget of a replay: a count of visited nodes, so that no input makes it run for long."""


class BudgetExceeded(Exception):
    """The visits of this budget are used up."""


class Budget:
    """Visits that are left, of this budget and of the one that it is a part of.

    Counts, not time, so that equal input ends equally on every machine.
    """

    def __init__(self, visits: int, whole: "Budget | None" = None) -> None:
        self.left = visits
        self._whole = whole

    def spend(self, visits: int = 1) -> None:
        """Count visits.

        Raises:
            BudgetExceeded: if fewer are left.
        """
        self.left -= visits
        if self.left < 0:
            raise BudgetExceeded
        if self._whole is not None:
            self._whole.spend(visits)
