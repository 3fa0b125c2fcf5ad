"""Errors that say what happens to the work.

permanent: the job or part fails now, with the reason. transient: it comes back later, and that counts as a
failure. throttled: it comes back later, and that does not count. blocked: it waits for a person. Everything else
that is raised is ours: a bug.
"""

from stafette.core.form import Form


class StafetteError(Exception):
    """Something went wrong."""

    reason = "error"

    def __init__(self, detail: str | None = None, *, reason: str | None = None) -> None:
        """`detail` is a sentence for people; `reason` one word for machines, the class's own by default."""
        super().__init__(detail or (self.__doc__ or "").strip())
        if reason:
            self.reason = reason


class PermanentError(StafetteError):
    """This work can never succeed as it stands."""

    reason = "permanent"


class RefusedError(PermanentError):
    """A message that is not for us: kept as a dead record at its first delivery, never retried."""

    reason = "refused"


class TransientError(StafetteError):
    """This may go well later."""

    reason = "transient"


class ThrottledError(TransientError):
    """Somebody asked us to come back later."""

    reason = "throttled"

    def __init__(
        self, detail: str | None = None, *, wait: float, reason: str | None = None
    ) -> None:
        """`wait` is in seconds from now."""
        super().__init__(detail, reason=reason)
        self.wait = wait


class BlockedError(StafetteError):
    """Only a person can tell how this goes on."""

    reason = "blocked"

    def __init__(self, form: Form) -> None:
        super().__init__(form.question)
        self.form = form


class UnsettledError(BlockedError):
    """No agent gave an answer that may be used, or the answer leaves the question open."""


class NotFiniteError(PermanentError):
    """A number is NaN or infinite, which nothing downstream can carry."""

    reason = "not_finite"


class EventShapeError(StafetteError):
    """The function was called with something that is not a batch of SQS records."""

    reason = "event_shape"
