"""Streams that do their work at once, as a CPU's, and write down what would wait for what."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class RecordedStreams:
    """`log` holds (stream, what, number of the event); `on_record` is called at each mark."""

    def __init__(self, on_record: Callable[[int], None] = lambda event: None) -> None:
        self.log: list[tuple[str, str, int]] = []
        self.on_record = on_record
        self._stream = "main"
        self._num_events = 0

    def event(self) -> "RecordedEvent":
        self._num_events += 1
        return RecordedEvent(self, self._num_events)

    @contextmanager
    def side(self) -> Iterator[None]:
        self._stream = "side"
        yield
        self._stream = "main"

    def note(self, what: str, event: int) -> None:
        self.log.append((self._stream, what, event))


class RecordedEvent:
    def __init__(self, streams: RecordedStreams, number: int) -> None:
        self._streams = streams
        self.number = number

    def record(self) -> None:
        self._streams.on_record(self.number)
        self._streams.note("record", self.number)

    def wait(self) -> None:
        self._streams.note("wait", self.number)

    def synchronize(self) -> None:
        self._streams.note("synchronize", self.number)
