"""nginx in its other parts (its own tests are not in Debian): in front of web servers, FastCGI, uwsgi and whatever talks TCP, with TLS on
either side; and replaced while connections are under way, by a new configuration (HUP) and by a new program (USR2)."""

import os
import signal
from pathlib import Path

import pytest

from harness.conform import Steps
from harness.payload import checksum, payload
from harness.runner import PATIENCE
from harness.system import until
from harness.web import certificate, start_nginx

pytestmark = pytest.mark.conformance

MB = 1_000_000
STREAM_MODULE = "/usr/lib/nginx/modules/ngx_stream_module.so"
PHP = """<?php
if ($_SERVER['REQUEST_METHOD'] == 'POST') { echo sha1(file_get_contents('php://input')), "\\n"; }
else { for ($i = 0; $i < $_GET['n']; $i++) { echo str_repeat(chr(65 + $i % 26), 10000); if ($i % 50 == 0) { flush(); } } }
"""
UWSGI = """
import hashlib
def application(environment, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    if environment["REQUEST_METHOD"] == "POST":
        return [hashlib.sha1(environment["wsgi.input"].read(int(environment["CONTENT_LENGTH"]))).hexdigest().encode()]
    return (bytes([65 + i % 26]) * 10000 for i in range(int(environment["QUERY_STRING"].removeprefix("n="))))
"""


def letters(count):
    """What both programs above answer."""
    return b"".join(bytes([65 + i % 26]) * 10000 for i in range(count))


def site(r):
    (r.tmp / "site").mkdir()
    (r.tmp / "site/small").write_text("small\n")
    return payload(r.tmp / "site/large", 30 * MB)


def curl(need, *words):
    return [need("curl"), "-sS", "--max-time", "20", *words]


def fetched(r, need, url, *options):
    return checksum(r.run(curl(need, *options, url), timeout=60).stdout)


def proxy(r, need):
    steps, front, back = Steps(), r.free_port(), r.free_port()
    wanted = site(r)
    start_nginx(r, need, back, f"server {{ listen 127.0.0.1:{back}; root {r.tmp}/site; location /put/ {{ alias {r.tmp}/put/; dav_methods PUT; "
                "create_full_put_path on; } }", name="back", workers=2)
    start_nginx(r, need, front, f"""
        upstream back {{ server 127.0.0.1:{back}; keepalive 4; }}
        proxy_http_version 1.1; proxy_set_header Connection "";
        server {{
            listen 127.0.0.1:{front};
            location / {{ proxy_pass http://back; }}
            location /straight/ {{ proxy_pass http://back/; proxy_buffering off; proxy_request_buffering off; }}
            location /slice/ {{ slice 1m; proxy_set_header Range $slice_range; proxy_pass http://back/; }}
        }}""", name="front")
    url = f"http://127.0.0.1:{front}"
    for place in ("", "/straight", "/slice"):
        with steps.step(f"large by {place or '/'}"):
            assert fetched(r, need, f"{url}{place}/large") == wanted
            assert fetched(r, need, f"{url}{place}/large", "-r", "5000000-8999999") == checksum((r.tmp / "site/large").read_bytes()[5 * MB:9 * MB])
    with steps.step("many"):
        assert r.run(curl(need, *[f"{url}/small"] * 300)).text == "small\n" * 300
    with steps.step("many at a time"):
        assert r.run(curl(need, "-Z", *[f"{url}/small"] * 100)).text == "small\n" * 100
    for place in ("", "/straight"):
        with steps.step(f"upload by {place or '/'}"):
            r.run(curl(need, "-T", r.tmp / "site/large", f"{url}{place}/put/a"), timeout=60)
            assert checksum(r.tmp / "put/a") == wanted
            (r.tmp / "put/a").unlink()
    with steps.step("clients that go away"):
        r.run(curl(need, "-o", "/dev/full", f"{url}/straight/large"), status=23)
        assert fetched(r, need, f"{url}/large") == wanted
    return steps


def applications(r, need):
    steps, port, php, uwsgi = Steps(), r.free_port(), r.free_port(), r.free_port()
    (r.tmp / "site").mkdir()
    (r.tmp / "site/a.php").write_text(PHP)
    (r.tmp / "application.py").write_text(UWSGI)
    wanted = payload(r.tmp / "data", 5 * MB)
    r.server([need("php-cgi"), "-b", f"127.0.0.1:{php}"], php, env={"PHP_FCGI_CHILDREN": 2, "PHP_FCGI_MAX_REQUESTS": 1000})
    r.server([need("uwsgi"), "--plugin", "python3", "--socket", f"127.0.0.1:{uwsgi}", "--wsgi-file", r.tmp / "application.py", "--master",
              "--processes", 2, "--die-on-term", "--need-app"], uwsgi)
    start_nginx(r, need, port, f"""
        upstream php {{ server 127.0.0.1:{php}; keepalive 2; }}
        server {{
            listen 127.0.0.1:{port}; root {r.tmp}/site;
            location ~ php$ {{
                include /etc/nginx/fastcgi_params; fastcgi_param SCRIPT_FILENAME {r.tmp}/site/a.php; fastcgi_keep_conn on; fastcgi_pass php;
            }}
            location /uwsgi {{ include /etc/nginx/uwsgi_params; uwsgi_pass 127.0.0.1:{uwsgi}; }}
        }}""")
    for name, place in {"FastCGI": "a.php", "uwsgi": "uwsgi"}.items():
        url = f"http://127.0.0.1:{port}/{place}"
        with steps.step(f"{name}, answers"):
            for count in (1, 30, 500):
                assert r.run(curl(need, f"{url}?n={count}"), timeout=60).stdout == letters(count)
        with steps.step(f"{name}, many"):
            assert r.run(curl(need, *[f"{url}?n=1"] * 100), timeout=60).stdout == letters(1) * 100
        with steps.step(f"{name}, post"):
            assert r.run(curl(need, "-H", "Expect:", "--data-binary", f"@{r.tmp}/data", url), timeout=60).text.strip() == wanted
    return steps


def stream(r, need):
    """TCP as it is, TLS taken off, and TLS put on."""
    steps, web = Steps(), r.free_port()
    straight, off, on, back = (r.free_port() for _ in range(4))
    wanted = site(r)
    modules = f"load_module {STREAM_MODULE};" if Path(STREAM_MODULE).exists() else ""
    start_nginx(r, need, web, f"server {{ listen 127.0.0.1:{web}; root {r.tmp}/site; }}", top=f"""
        {modules}
        stream {{
            {certificate(r, need)}
            server {{ listen 127.0.0.1:{straight}; proxy_pass 127.0.0.1:{web}; }}
            server {{ listen 127.0.0.1:{off} ssl; proxy_pass 127.0.0.1:{web}; }}
            server {{ listen 127.0.0.1:{on}; proxy_ssl on; proxy_pass 127.0.0.1:{off}; }}
            server {{ listen 127.0.0.1:{back}; proxy_protocol on; proxy_pass 127.0.0.1:{web}; }}
        }}""", workers=2)
    with steps.step("TCP"):
        assert fetched(r, need, f"http://127.0.0.1:{straight}/large") == wanted
        assert r.run(curl(need, *[f"http://127.0.0.1:{straight}/small"] * 200)).text == "small\n" * 200
    with steps.step("TLS taken off"):
        assert fetched(r, need, f"https://127.0.0.1:{off}/large", "--cacert", r.tmp / "cert.pem") == wanted
    with steps.step("TLS put on"):
        assert fetched(r, need, f"http://127.0.0.1:{on}/large") == wanted
    with steps.step("a header that the server does not know"):
        assert "400" in r.run(curl(need, "-i", f"http://127.0.0.1:{back}/small"), status=None).text.split("\n")[0]
    return steps


def replaced(r, need):
    steps, port = Steps(), r.free_port()
    wanted = site(r)

    def configuration(name):
        return f"""server {{ listen 127.0.0.1:{port}; root {r.tmp}/site; location = /name {{ return 200 {name}; }} }}"""

    start_nginx(r, need, port, configuration("first"), workers=2, daemon=True)
    conf, pid = r.tmp / "nginx.conf", r.tmp / "nginx.pid"
    old = int(pid.read_text())
    url = f"http://127.0.0.1:{port}"

    def under_way():
        """Downloads that last, and one connection with many requests."""
        (r.tmp / "got").mkdir(exist_ok=True)
        return [r.spawn(curl(need, "--limit-rate", "10M", "-o", r.tmp / f"got/{i}", f"{url}/large")) for i in range(3)] + [
            r.spawn(curl(need, "--retry", 3, "--rate", "20/s", *[f"{url}/small"] * 40))]

    def arrived(programs):
        assert [program.wait(60) for program in programs] == [0] * 4
        assert {checksum(r.tmp / f"got/{i}") for i in range(3)} == {wanted}
        assert programs[3].result().text == "small\n" * 40

    def name():
        return r.run(curl(need, f"{url}/name")).text

    with steps.step("a new configuration"):
        programs = under_way()
        until(lambda: (r.tmp / "got/2").exists(), 30 * PATIENCE, "the downloads begin")
        conf.write_text(conf.read_text().replace("first", "second"))
        os.kill(old, signal.SIGHUP)
        until(lambda: name() == "second", 30 * PATIENCE, "the new configuration serves")
        arrived(programs)
    with steps.step("a new program"):
        programs = under_way()
        conf.write_text(conf.read_text().replace("second", "third"))
        os.kill(old, signal.SIGUSR2)
        until(lambda: (r.tmp / "nginx.pid.oldbin").exists() and pid.exists() and pid.read_text(), 30 * PATIENCE, "the new program runs")
        os.kill(old, signal.SIGWINCH)
        until(lambda: name() == "third", 30 * PATIENCE, "the new program serves alone")
        os.kill(old, signal.SIGQUIT)
        arrived(programs)
        until(lambda: not (r.tmp / "nginx.pid.oldbin").exists(), 30 * PATIENCE, "the old program ends")
    with steps.step("the new program alone"):
        assert fetched(r, need, f"{url}/large") == wanted and name() == "third"
        os.kill(int(pid.read_text()), signal.SIGQUIT)
        until(lambda: not pid.exists(), 30 * PATIENCE, "the new program ends")
    return steps


SCENARIOS = {"proxy": proxy, "applications": applications, "stream": stream, "replaced": replaced}


@pytest.mark.parametrize("name", SCENARIOS)
def test_nginx(conform, need, name):
    conform(f"nginx, {name}", lambda r: SCENARIOS[name](r, need))
