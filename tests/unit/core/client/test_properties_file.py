"""Java's properties files, read as Java reads them."""

from __future__ import annotations

import pytest

from penstock.core.client.properties_file import parse_properties


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("", {}),
        ("# comment\n! comment\n\n   # indented\n", {}),
        ("a=1", {"a": "1"}),
        ("a:1\nb 2\nc\t=\t3  \n", {"a": "1", "b": "2", "c": "3  "}),
        ("a=b=c:d", {"a": "b=c:d"}),
        ("a = # no comment", {"a": "# no comment"}),
        ("empty=\nbare\n", {"empty": "", "bare": ""}),
        ("a=1\\\n   2\\\n\t3", {"a": "123"}),
        ("a=1\\\\\nb=2", {"a": "1\\", "b": "2"}),
        ("a=1\\\n# no comment", {"a": "1# no comment"}),
        ("a=1\r\nb=2\rc=3", {"a": "1", "b": "2", "c": "3"}),
        ("a\\=b\\:c\\ d=1", {"a=b:c d": "1"}),
        ("a=\\t\\n\\r\\f\\q\\\\\\u00e9", {"a": "\t\n\r\fq\\é"}),
        ("a=1\na=2", {"a": "2"}),
        ("a=1\\", {"a": "1"}),
        ("=value", {"": "value"}),
    ],
)
def test_a_file_is_read_as_java_reads_it(text: str, read: dict[str, str]) -> None:
    assert parse_properties(text) == read


def test_a_login_over_several_lines_is_one_value() -> None:
    text = (
        "sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \\\n"
        '    username="me" \\\n'
        '    password="a#b\\\\=c";\n'
    )
    assert parse_properties(text)["sasl.jaas.config"].endswith('username="me" password="a#b\\=c";')
