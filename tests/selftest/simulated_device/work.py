"""The queue: a thread that does what it is given, in order."""

import threading
from collections import deque
from collections.abc import Callable

from .faults import SETTINGS

Work = Callable[[], object]


class Queue:
    """Work in order; at once, or when somebody waits."""

    def __init__(self) -> None:
        self._pending: deque[Work] = deque()
        self._changed = threading.Condition()
        self._waiting = 0
        self._busy = self._stopped = False
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def submit(self, work: Work) -> None:
        """Append to the queue."""
        with self._changed:
            if self._thread is None:  # not earlier: threads do not survive a fork
                self._thread = threading.Thread(target=self._serve, daemon=True)
                self._thread.start()
            self._pending.append(work)
            self._changed.notify_all()

    def wait(self) -> None:
        """Return when everything is done; raises what work has raised."""
        with self._changed:
            self._waiting += 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._pending and not self._busy)
            self._waiting -= 1
            error, self._error = self._error, None
        if error is not None:
            raise error

    def stop(self) -> None:
        """End the thread, after the work that it is at."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _may_work(self) -> bool:
        return self._stopped or bool(self._pending and (self._waiting > 0 or not SETTINGS.late))

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(self._may_work)
                if self._stopped:
                    return
                work, self._busy = self._pending.popleft(), True
            try:
                work()
            except BaseException as error:  # told to whoever waits, as devices do
                self._error = error
            del work
            with self._changed:
                self._busy = False
                self._changed.notify_all()
