"""A clock for tests, which stands still unless it is told to move."""


class FakeTime:
    """Stands in for the module `time`.

    Attributes:
        now: Seconds; each reading adds `tick`.
    """

    def __init__(self, tick=0.0):
        self.now, self.tick = 0.0, tick

    def perf_counter(self):
        self.now += self.tick
        return self.now

    def sleep(self, seconds):
        self.now += seconds
