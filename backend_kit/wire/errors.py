"""The root of every failure that a client may see: it carries the code, never an exception text."""

from typing import ClassVar

from backend_kit.wire.codes import CODES, Code


class ServiceError(Exception):
    """A failure with a wire code. Subclasses set `code`; its `str()` is for logs and contains no input value."""

    code: ClassVar[Code] = Code.INTERNAL
    cause: ClassVar[str] = ""
    """Which of several causes with this code it is, for another service: header `X-Cause`."""

    def __init__(self, reason: str = "", *, retry_after_s: float | None = None) -> None:
        super().__init__(reason or self.code.value)
        self.retry_after_s = retry_after_s

    @property
    def status(self) -> int:
        """The HTTP status of this failure on REST."""
        return CODES[self.code].status

    @property
    def retryable(self) -> bool:
        """Whether the same request may succeed later."""
        return CODES[self.code].retryable
