"""A clock for tests, which stands still unless it is told to move."""


class FakeTime:
    """Stands in for the module `time`.

    Attributes:
        now: Seconds.
    """

    def __init__(self):
        self.now = 0.0

    def perf_counter(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds
