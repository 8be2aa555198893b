"""JSON access logs for the kernel."""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from penstock.formats.accesslog_slots import NOT_JSON
from penstock.formats.jit import part


@part
def read_document(buf, at, end, keys, key_text, spans, numbers, ranks, stack):
    return NOT_JSON
