"""curl and wget, from nginx and from Python's http.server: large files and many small ones, parts of files, over one connection and over
many at a time, uploads, HTTP/2, TLS."""

import sys

import pytest

from harness.conform import Steps, chosen
from harness.payload import checksum, payload
from harness.web import certificate, start_nginx

pytestmark = pytest.mark.conformance

MB = 1_000_000


def site(r):
    """Files to fetch; returns their checksums."""
    folder = r.tmp / "site"
    folder.mkdir()
    sums = {f"small{i}": payload(folder / f"small{i}", 500 + i) for i in range(50)}
    (folder / "index.html").write_text("".join(f'<a href="{name}">{name}</a>\n' for name in sums))
    return {"large": payload(folder / "large", 20 * MB), **sums}


def nginx(r, need):
    sums, plain, secure = site(r), r.free_port(), r.free_port()
    start_nginx(r, need, plain, f"""
        {certificate(r, need)}
        server {{
            listen 127.0.0.1:{plain}; listen 127.0.0.1:{secure} ssl http2;
            root {r.tmp}/site;
            location /put/ {{ alias {r.tmp}/put/; dav_methods PUT; create_full_put_path on; }}
        }}""")
    return sums, f"http://127.0.0.1:{plain}", f"https://127.0.0.1:{secure}"


def python_server(r):
    sums, port = site(r), r.free_port()
    r.server([sys.executable, "-m", "http.server", "--protocol", "HTTP/1.1", "--bind", "127.0.0.1", "--directory", r.tmp / "site", port], port)
    return sums, f"http://127.0.0.1:{port}"


def by_curl(r, need, sums, url):
    """What any server can do."""
    steps, curl = Steps(), [need("curl"), "-sS", "--max-time", "60"]
    with steps.step("large"):
        assert checksum(r.run([*curl, f"{url}/large"], timeout=60).stdout) == sums["large"]
    with steps.step("many over one connection"):
        together = r.run([*curl, "-w", "%{num_connects} ", "-o", f"{r.tmp}/got-#1", f"{url}/small[0-49]"], timeout=60).text
        assert sum(map(int, together.split())) == 1, together
        assert {f"small{i}": checksum(r.tmp / f"got-{i}") for i in range(50)} == {name: sums[name] for name in sums if name != "large"}
    with steps.step("many at a time"):
        r.run([*curl, "-Z", "--parallel-max", "8", "-o", f"{r.tmp}/par-#1", f"{url}/small[0-49]"], timeout=60)
        assert all(checksum(r.tmp / f"par-{i}") == sums[f"small{i}"] for i in range(50))
    with steps.step("slowly"):
        assert checksum(r.run([*curl, "--limit-rate", "40M", f"{url}/large"], timeout=60).stdout) == sums["large"]
    with steps.step("broken off"):
        r.run([*curl, "--max-filesize", "1000", "-o", r.tmp / "no", f"{url}/large"], status=63)
        r.run([*curl, "-o", "/dev/full", f"{url}/large"], status=23)
    with steps.step("what is not there"):
        r.run([*curl, "-f", f"{url}/nothing"], status=22)
    return steps


def by_wget(r, need, sums, url):
    steps, wget = Steps(), [need("wget"), "-q", "-T", "60", "-t", "1"]
    with steps.step("large"):
        assert checksum(r.run([*wget, "-O", "-", f"{url}/large"], timeout=60).stdout) == sums["large"]
    with steps.step("all that is linked"):
        r.run([*wget, "-r", "-nd", "-P", r.tmp / "mirror", f"{url}/"], timeout=60)
        assert all(checksum(r.tmp / f"mirror/small{i}") == sums[f"small{i}"] for i in range(50))
    with steps.step("what is not there"):
        r.run([*wget, f"{url}/nothing"], status=8)
    return steps


def curl_nginx(r, need):
    sums, url, secure = nginx(r, need)
    steps, curl = by_curl(r, need, sums, url), [need("curl"), "-sS", "--max-time", "60"]
    whole = (r.tmp / "site/large").read_bytes()
    with steps.step("a range"):
        assert r.run([*curl, "-r", "1000000-1999999", f"{url}/large"]).stdout == whole[MB:2 * MB]
    with steps.step("the rest"):
        (r.tmp / "part").write_bytes(whole[:15 * MB])
        r.run([*curl, "-C", "-", "-o", r.tmp / "part", f"{url}/large"])
        assert checksum(r.tmp / "part") == sums["large"]
    with steps.step("upload"):
        r.run([*curl, "-T", r.tmp / "site/large", f"{url}/put/a"], timeout=60)
        assert checksum(r.tmp / "put/a") == sums["large"]
    with steps.step("upload by pieces"):
        r.run([*curl, "-T", "-", f"{url}/put/b"], input=whole, timeout=60)
        assert checksum(r.tmp / "put/b") == sums["large"]
    secured = [*curl, "--cacert", r.tmp / "cert.pem"]
    for version in ("--http1.1", "--http2"):
        with steps.step(f"TLS {version}"):
            assert checksum(r.run([*secured, version, f"{secure}/large"], timeout=60).stdout) == sums["large"]
            r.run([*secured, version, "-Z", "-o", f"{r.tmp}/tls-#1", f"{secure}/small[0-49]"], timeout=60)
            assert all(checksum(r.tmp / f"tls-{i}") == sums[f"small{i}"] for i in range(50))
    return steps


def wget_nginx(r, need):
    sums, url, secure = nginx(r, need)
    steps, wget = by_wget(r, need, sums, url), [need("wget"), "-q", "-T", "60", "-t", "1"]
    with steps.step("the rest"):
        (r.tmp / "large").write_bytes((r.tmp / "site/large").read_bytes()[:15 * MB])
        r.run([*wget, "-c", f"{url}/large"], timeout=60)
        assert checksum(r.tmp / "large") == sums["large"]
    with steps.step("TLS"):
        got = r.run([*wget, "-O", "-", f"--ca-certificate={r.tmp}/cert.pem", f"{secure}/large"], timeout=60).stdout
        assert checksum(got) == sums["large"]
    return steps


SCENARIOS = {"curl, nginx": curl_nginx, "wget, nginx": wget_nginx, "curl, http.server": lambda r, need: by_curl(r, need, *python_server(r)),
             "wget, http.server": lambda r, need: by_wget(r, need, *python_server(r))}


@pytest.mark.parametrize("name", chosen(SCENARIOS, ["curl, nginx", "wget, http.server"]))
def test_fetchers(conform, need, name):
    conform(name, lambda r: SCENARIOS[name](r, need))
