"""Every error Penstock raises, as one picklable tree.

Rule: an error shows a tired operator what to do. Its text is always `[CONDITION] what happened, with the
facts. What to do next.` Spark carries errors from its Python workers to the driver as text only, so the
condition in brackets, not the class, is what a user (or a test) can rely on. Foreign exceptions are wrapped
once, where they are caught, with `raise ... from`.

Why not one class per condition: there are many conditions and they change; the classes say *which part of the
system* to look at, the condition says *what* is wrong.

Whether an error may pass on its own (`retriable`) is added to the traceback as a last line, a note: the
driver gets only the traceback and must decide whether to retry the batch (see `find_verdict`).

>>> error = OptionError("OPTION_MISSING", "`kafka.bootstrap.servers` is not set.", hint="Set it.")
>>> str(error)
'[OPTION_MISSING] `kafka.bootstrap.servers` is not set. Set it.'
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

#: The last line of a traceback that ends in a Penstock error.
_MAY_PASS, _WILL_NOT_PASS = "Penstock: trying again may help.", "Penstock: trying again will not help."
_NOTE = re.compile(rf"^({re.escape(_MAY_PASS)}|{re.escape(_WILL_NOT_PASS)})$", re.MULTILINE)


class PenstockError(Exception):
    """The root error: `condition` in capitals, `what` happened, a `hint` with the next step, the `facts`."""

    def __init__(
        self,
        condition: str,
        what: str,
        *,
        hint: str = "",
        facts: Mapping[str, object] | None = None,
        retriable: bool = False,
    ) -> None:
        self.condition = condition
        self.what = what
        self.hint = hint
        self.facts = dict(facts or {})
        self.retriable = retriable
        super().__init__(" ".join(part for part in (f"[{condition}]", what, hint) if part))
        self.add_note(_MAY_PASS if retriable else _WILL_NOT_PASS)

    def __reduce__(self) -> tuple[object, ...]:
        # Exceptions pickle only their positional arguments. Ours are keywords, so rebuilding is defined here.
        arguments = (self.condition, self.what, self.hint, self.facts, self.retriable)
        return (_rebuild, (type(self), *arguments))


def _rebuild(
    kind: type[PenstockError],
    condition: str,
    what: str,
    hint: str,
    facts: dict[str, object],
    retriable: bool,
) -> PenstockError:
    return kind(condition, what, hint=hint, facts=facts, retriable=retriable)


def find_verdict(error: BaseException) -> bool | None:
    """Return whether trying again may help, as a Penstock error in it says; None if it holds none.

    That error may be this one, a cause of it, or one whose traceback Spark has made the text of another. Of
    several the outermost counts, because the code that wrapped an error knew more. In a traceback that is the
    last one.
    """
    for each in list_causes(error):
        if isinstance(each, PenstockError):
            return each.retriable
        told = _NOTE.findall(str(each))
        if told:
            return bool(told[-1] == _MAY_PASS)
    return None


def comes_from_task(error: BaseException) -> bool:
    """Return whether this error comes from a task: then Spark has put a Penstock error into it as text."""
    return any(
        not isinstance(each, PenstockError) and _NOTE.search(str(each)) is not None
        for each in list_causes(error)
    )


def list_causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the error, then what it was raised from, and so on."""
    within: BaseException | None = error
    while within is not None:
        yield within
        within = within.__cause__


class OptionError(PenstockError):
    """An option or setting is wrong, missing or refused. Raised on entry, before any I/O."""


class VersionError(PenstockError):
    """An installed library is too old, too new or missing."""


class BrokerError(PenstockError):
    """Kafka could not be reached, refused a request, or did not answer in time."""


class DataLossError(PenstockError):
    """Records that should have been read are gone, or cannot be shown to be the same."""


class OffsetStoreError(PenstockError):
    """An offset store failed or contradicts itself."""


class SinkError(PenstockError):
    """Results could not be made durable."""


class ClusterError(PenstockError):
    """A server on this computer could not be fetched, started or stopped."""


class DecodeError(PenstockError):
    """Bytes from the wire do not mean what they should."""


class CorruptBatchError(DecodeError):
    """A record batch is damaged or hostile: checksum, lengths or structure do not hold."""
