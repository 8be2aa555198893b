"""A first look at the lines that a verb is about to parse: what the format makes of them, and what is wrong.

Rule: the look comes before any decision. A format that cannot be right is refused, and a doubtful one causes
a warning on stderr, once. Where lines come one by one, as in a new topic, the look goes on until it has seen
enough.

    look = FirstLook(make_parser("combined"))
    replay(paths, settings, look=look)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.cli.shared.terminal import complain

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.apps.accesslog.first_look.line_samples import Sample
    from penstock.apps.accesslog.first_look.sample_checks import FormatFinding
    from penstock.apps.accesslog.parsing.line_parser import Parser


class FirstLook:
    """Looks at lines until it has seen enough; says what they are and what is doubtful, or refuses them.

    `tell` gets the first line field by field. `is_known` says that the format has been used before, for the
    same results. Then nothing is refused, since servers that write nonsense for an hour must not keep a
    defence from starting again. `has_more` says that more lines will come, so a few of them prove nothing
    yet. `is_whole` says that none will, so a format that fits none of them is refused, however few there are.

    `fronts` holds the addresses that look like proxies and that nobody has named, as of the call with the
    most lines. It is empty if `spares` is false. Where earlier lines can be read, it holds only addresses
    that look like proxies there, too: an attacker who floods a site while a run starts can dominate the
    newest lines, but not those of the days before.
    """

    def __init__(
        self,
        parser: Parser,
        tell: Callable[[str], None] | None = complain,
        *,
        is_known: bool = False,
        has_more: bool = False,
        is_whole: bool = False,
        spares: bool = True,
        read_earlier: Callable[[], pa.Array] | None = None,
        warn: Callable[[str], None] = complain,
    ) -> None:
        self.is_known, self.is_done = is_known, False
        self.fronts: tuple[str, ...] = ()
        self._parser, self._tell, self._warn, self._has_more = parser, tell, warn, has_more
        self._is_whole, self._spares, self._read_earlier = is_whole, spares, read_earlier
        self._has_described = False
        self._seen: pa.Array | None = None
        self._told: set[str] = set()

    def __call__(self, values: pa.Array, /, *, is_due: bool = False) -> bool:
        """Look at lines, which include those of earlier calls, and return whether they are enough.

        `is_due` says that decisions do not wait for more lines, so these are judged, however few there are.
        """
        from penstock.apps.accesslog.first_look.line_samples import (
            ENOUGH_LINES,
            LEAST_LINES,
            SAMPLE_BYTES,
            take_sample,
        )
        from penstock.apps.accesslog.first_look.sample_checks import check_sample

        if is_due:
            self._has_more = False
        # An earlier look at the topic may have seen more lines than the first batches of a run bring.
        if self._seen is not None and len(values) < len(self._seen):
            values = self._seen
        if self.is_done or not len(values):
            return self.is_done
        self._seen = values
        is_enough = len(values) >= ENOUGH_LINES or values.nbytes >= SAMPLE_BYTES
        sample = self._confirm(take_sample(values, self._parser))
        self.fronts = sample.fronts
        self._describe(sample, is_enough)
        if is_enough or len(values) >= LEAST_LINES or not self._has_more:
            self._judge(check_sample(sample, is_whole=self._is_whole))
        self.is_done = is_enough
        if is_enough:
            self._seen = None
        return is_enough

    def _confirm(self, sample: Sample) -> Sample:
        """Return the sample with only those unnamed proxies that are to be spared."""
        from penstock.apps.accesslog.first_look.line_samples import take_sample

        fronts = sample.fronts if self._spares else ()
        if fronts and self._read_earlier is not None:
            earlier = take_sample(self._read_earlier(), self._parser).fronts
            fronts = tuple(each for each in fronts if each in earlier)
        return replace(sample, fronts=fronts)

    def _describe(self, sample: Sample, is_enough: bool) -> None:
        """Describe a line as soon as there is one, and give the numbers again when there are enough lines."""
        from penstock.apps.accesslog.first_look.sample_checks import describe_sample

        lines = list(describe_sample(sample))
        if self._has_described:
            lines = lines[-1:] if is_enough else []
        for line in lines:
            self._has_described = True
            if self._tell is not None:
                self._tell(line)

    def _judge(self, findings: Sequence[FormatFinding]) -> None:
        for finding in findings:
            if finding.is_fatal and not self.is_known:
                raise finding.error
            if finding.condition not in self._told:
                self._told.add(finding.condition)
                self._warn(f"WARNING {finding.error}")
