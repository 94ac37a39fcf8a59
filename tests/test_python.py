"""Python's own servers (asyncio, socketserver by fork and by thread, selectors, http.server) and gunicorn with four workers, with
clients blocking, asyncio, requests and urllib."""

import sys

import pytest

from harness import modes

SERVERS = modes.ROOT / "tests/apps/servers.py"

HTTP_CLIENT = """
import hashlib, requests, sys, urllib.request
base, session, digest = f"http://127.0.0.1:{sys.argv[1]}", requests.Session(), hashlib.sha1()
for i in range(20):
    digest.update(urllib.request.urlopen(f"{base}/urllib/{i}", timeout=30).read())
for i in range(300):
    answer = session.get(f"{base}/page/{i}")
    assert answer.status_code == 200
    digest.update(answer.content)
for size in (0, 1, 1000, 100_000, 3_000_000):
    body = bytes(range(256)) * (size // 256 + 1)
    assert session.post(base + "/echo", data=body).content == body
print(digest.hexdigest())
"""


def serve(r, kind):
    port = r.free_port()
    r.server([sys.executable, SERVERS, kind, port], port)
    return port


@pytest.mark.parametrize("client", ["ask-blocking", "ask-asyncio"])
@pytest.mark.parametrize("kind", ["asyncio", "forking", "threading"])
def test_lines(r, same_as_plain, kind, client):
    same_as_plain(lambda r: r.run([sys.executable, SERVERS, client, serve(r, kind)], timeout=60).text)
    r.accelerated()


def test_selectors(r, same_as_plain):
    same_as_plain(lambda r: r.run([sys.executable, SERVERS, "ask-lines", serve(r, "selectors")], timeout=60).text)
    r.accelerated()


@pytest.mark.parametrize("kind", ["http", "http-threading"])
def test_http(r, same_as_plain, kind):
    same_as_plain(lambda r: r.run([sys.executable, "-c", HTTP_CLIENT, serve(r, kind)], timeout=60).text)
    r.accelerated()


@pytest.mark.parametrize("worker", ["sync", "gthread"])
def test_gunicorn(r, same_as_plain, worker):
    def scenario(r):
        port = r.free_port()
        r.server([sys.executable, "-m", "gunicorn", "-w", "4", "-k", worker, "--chdir", SERVERS.parent, "--worker-tmp-dir", r.tmp, "-b",
                  f"127.0.0.1:{port}", "servers:application"], port, env={"PYTHONDONTWRITEBYTECODE": "1"})
        return r.run([sys.executable, "-c", HTTP_CLIENT, port], timeout=60).text

    same_as_plain(scenario)
