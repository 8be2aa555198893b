"""Texts that an attacker may send where an address, a name or a word is expected."""

from __future__ import annotations

import itertools

_INJECTIONS = [
    "; drop",
    "\n",
    "\r\n",
    "\n}\nflush ruleset\n",
    " timeout 1s }; add rule inet filter input accept; #",
    "' OR 1=1 --",
    '"; DROP TABLE accesslog_decisions; --',
    "`reboot`",
    "$(reboot)",
    "|reboot",
    "&& reboot",
    "</RequireAll>\nRequire all granted",
    ";}\ninclude /etc/shadow;",
    "\x00",
    "\x1b[31m",
    "\x1b]0;title\x07",
    "\x1b]52;c;aGk=\x07",
    "\x1b]8;;http://x.example\x07click\x1b]8;;\x07",
    "\u202e",
    "\u2028",
    "\t",
    " ",
    "%0a",
    "\\n",
    ",10.0.0.0/8",
    "/0",
    "/-1",
    "/333",
    "/ 24",
    "/24/24",
    "%eth0",
    "%eth0;flush ruleset",
    "=cmd|'/c calc'!A0",
    "<script>alert(1)</script>",
    "../../etc/passwd",
]
_BASES = ["192.0.2.7", "2001:db8::7", "198.51.100.0/24", "", "host.example", "fe80::1", "1", "-"]
_ALONE = [
    "localhost",
    "example.com",
    "xn--bcher-kva.example",
    "any",
    "all",
    "default",
    "0",
    "1.2.3",
    "1.2.3.4.5",
    "01.2.3.4",
    "1.2.3.256",
    "0x7f.1",
    "2130706433",
    "127.1",
    "1.2.3.4-1.2.3.9",
    "1.2.3.*",
    "::ffff:1.2.3.4.5",
    ":::",
    "1::2::3",
    "12345::",
    "[2001:db8::1]",
    "2001:db8::1:80:90:1:2:3:4",
    "१.२.३.४",
    "\uff11.2.3.4",
    "1.2.3.4\u200b",
    "@blocked4",
    "{ 1.2.3.4 }",
    "a" * 10_000,
    "1" * 400,
]

HOSTILE: list[str] = sorted(
    {
        *_ALONE,
        *(base + text for base, text in itertools.product(_BASES, _INJECTIONS)),
        *(text + base for base, text in itertools.product(_BASES[:4], _INJECTIONS)),
    }
)
