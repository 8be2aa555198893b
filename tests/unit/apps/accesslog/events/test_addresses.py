"""What counts as an address: the log's parser, the events, the shipper's key and the blocklists agree."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.apps.accesslog.events import line_events_kernel as k
from penstock.apps.accesslog.events.networks import parse_network
from penstock.apps.accesslog.events.subjects import bounds_of, name_subject
from penstock.apps.accesslog.parsing.client_addresses import make_networks, read_text
from penstock.apps.accesslog.parsing.line_parser import make_parser
from penstock.core.errors import OptionError

NUMBERS = st.sampled_from(
    ["0", "1", "9", "10", "010", "00", "255", "256", "08", "0x1", "1234", "", "-1", "+1"]
)
GROUPS = st.sampled_from(["", "", "0", "00", "1", "db8", "2001", "ffff", "00001", "G", "64", "ff9b", "FFFF"])
TEXTS = st.one_of(
    st.lists(NUMBERS, min_size=3, max_size=5).map(".".join),
    st.lists(GROUPS, min_size=2, max_size=10).map(":".join),
    st.tuples(st.lists(GROUPS, min_size=1, max_size=8), st.lists(NUMBERS, min_size=4, max_size=4)).map(
        lambda both: ":".join(both[0]) + ":" + ".".join(both[1])
    ),
    st.ip_addresses().map(str),
    st.text(alphabet="0123456789abcdef:.%", min_size=1, max_size=45),
)


def read_client(text: str) -> tuple[int, int, int]:
    """Return a client as an event has it: high and low half, and 2 for a host name."""
    data = np.frombuffer(text.encode(), np.uint8)
    high, low, present = np.empty(1, np.uint64), np.empty(1, np.uint64), np.empty(1, np.int8)
    k.read_clients(data, np.zeros(1, np.int32), np.array([data.size], np.int32), high, low, present)
    return int(high[0]), int(low[0]), int(present[0])


@given(TEXTS)
@example("010.0.0.1")
@example("::ffff:010.0.0.1")
@example("1.2.3.04")
@example("1:2:3:4:5:6:7::")
@example("::1:2:3:4:5:6:7:8")
@settings(deadline=None, max_examples=1500)
def test_all_doors_take_the_same_texts_for_the_same_addresses(text: str) -> None:
    listed = parse_network(text)
    if not text:
        assert listed is None
        return
    in_log = read_text(text)
    assert (listed is None) == (in_log is None)
    high, low, present = read_client(text)
    if in_log is None or in_log >> 112 == 1:
        assert present == 2
        return
    assert present == 1
    (first_high, first_low), _ = bounds_of(listed)
    assert first_high << 64 | first_low == in_log
    client = parse_network(name_subject(0, high, low))
    assert client is not None
    assert client.contains(listed)
    mask_high, mask_low, *address = make_networks([text])[0].tolist()
    assert (mask_high & mask_low, address) == ((1 << 64) - 1, [first_high, first_low])


@pytest.mark.parametrize("text", ["010.0.0.1", "192.0.2.007", "10.00.0.1", "::ffff:010.0.0.1"])
def test_a_number_with_a_leading_zero_is_no_address_anywhere(text: str) -> None:
    """One program reads it as octal, the next as decimal, so the wrong client might be blocked."""
    assert read_text(text) is None
    assert parse_network(text) is None
    assert read_client(text)[2] == 2
    with pytest.raises(OptionError, match="OPTION_INVALID"):
        make_networks([text])


@pytest.mark.parametrize(
    "text",
    ["10.0.0.0/33", "10.0.0.0/", "10.0.0.0/x", "10.0.0.0/255.0.0.0", "fe80::1%eth0", "", "::/129", "/8"],
)
def test_a_trusted_proxy_is_an_address_or_a_network(text: str) -> None:
    with pytest.raises(OptionError, match="OPTION_INVALID"):
        make_parser(trusted_proxies=[text])


@pytest.mark.parametrize("text", ["10.1.2.3/8", "2001:db8::5/32", "::ffff:10.0.0.0/104", "0.0.0.0/0", "::/0"])
def test_networks_of_proxies_are_those_that_lists_have(text: str) -> None:
    network = parse_network(text)
    assert network is not None
    *_, high, low = make_networks([text])[0].tolist()
    assert (high, low) == bounds_of(network)[0]
