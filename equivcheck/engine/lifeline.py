"""A child process ends when the process that started it is gone, however that ended.

The parent holds the writing end of a pipe and never writes. The kernel closes it when the parent is gone, SIGKILL
included, and the child's read comes back. That needs nothing but POSIX, and works at once, whatever the child does.
"""

from __future__ import annotations

import os
import signal
import threading
import time

_AGAIN = 30.0
"""Seconds between signals: one may be lost while Python runs a finaliser, and pytest takes up to 15 to end."""


def hold_on(descriptor: int) -> None:
    """End this process as by Ctrl-C when the pipe's other end is gone."""

    def wait() -> None:
        os.read(descriptor, 1)
        while True:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(_AGAIN)

    threading.Thread(target=wait, name="equivcheck-lifeline", daemon=True).start()
