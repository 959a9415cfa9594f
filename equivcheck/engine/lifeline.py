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
    """End this process as by Ctrl-C when the pipe's other end is gone. To be called in the main thread.

    A shell lets what it starts in the background ignore Ctrl-C, and so does whatever that starts.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def wait() -> None:
        os.read(descriptor, 1)
        while True:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(_AGAIN)

    threading.Thread(target=wait, name="equivcheck-lifeline", daemon=True).start()
