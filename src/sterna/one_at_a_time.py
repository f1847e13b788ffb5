"""`OneAtATime`: refuses a second thread, and survives an interrupt anywhere."""

from __future__ import annotations

import threading
import weakref

from sterna.errors import RequestError

__all__ = ["OneAtATime"]


class Visit:
    """One thread's stay at a `OneAtATime`, until `end` or until it is forgotten."""

    __slots__ = ("__weakref__", "thread")

    def __init__(self) -> None:
        self.thread: int | None = threading.get_ident()

    def end(self) -> None:
        """Let others in; harmless the second time."""
        self.thread = None


class OneAtATime:
    """Lets one thread in at a time, and refuses the others with an error.

    The thread that is in may enter again, so that Ctrl-C there does not lock it out of closing. Who
    is in follows from the visits that are alive: a lock that is taken and then noted would be kept
    by an interrupt between the two.
    """

    def __init__(self, refusal: str) -> None:
        """`refusal`: the error's text."""
        self._refusal = refusal
        self._visits: list[weakref.ref[Visit]] = []
        # Two threads do not both find nobody in; a signal handler may ask within.
        self._lock = threading.RLock()

    def enter(self) -> Visit:
        """Begin a visit, to be ended in a `finally`. RequestError while another thread is in."""
        visit = self.try_enter()
        if visit is None:
            raise RequestError(self._refusal)
        return visit

    def try_enter(self) -> Visit | None:
        """Begin a visit as `enter`, but return None while another thread is in."""
        visit = Visit()
        with self._lock:
            here = [weakref.ref(visit)]
            for ref in self._visits:  # one has ended if its thread is None, or it is forgotten
                other = ref()
                thread = other.thread if other else None
                if thread not in (None, visit.thread):
                    return None
                if thread is not None:
                    here.append(ref)
            self._visits = here
        return visit

    @property
    def busy(self) -> bool:
        """Whether a thread is in."""
        for ref in self._visits:
            visit = ref()
            if visit and visit.thread is not None:
                return True
        return False
