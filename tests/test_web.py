"""Web servers: nginx with one worker and with four, HAProxy in front of it, Apache prefork; clients curl and requests; keep-alive, large
files by sendfile, POST."""

import hashlib
import signal
import sys

import pytest

REQUESTS_CLIENT = """
import hashlib, requests, sys
base, session = sys.argv[1], requests.Session()
for i in range(300):
    answer = session.get(base + "/small.txt")
    assert answer.status_code == 200 and answer.text == "small\\n", answer
print(answer.headers["Content-Length"])
for name in ("medium.bin", "large.bin"):
    answer = session.get(base + "/" + name)
    print(name, len(answer.content), hashlib.sha1(answer.content).hexdigest())
print(session.get(base + "/missing").status_code)
print(session.get(base + "/large.bin", headers={"Range": "bytes=1000000-1999999"}).content == answer.content[1000000:2000000])
"""


def make_site(r):
    site = r.tmp / "site"
    site.mkdir(exist_ok=True)
    (site / "small.txt").write_text("small\n")
    for name, size in (("medium.bin", 100_000), ("large.bin", 20_000_000)):
        (site / name).write_bytes(b"".join(hashlib.sha256(b"%d" % i).digest() for i in range(size // 32)))
    return site


def nginx(r, need, workers):
    site, port = make_site(r), r.free_port()
    conf = r.tmp / "nginx.conf"
    conf.write_text(f"""
        user root; worker_processes {workers}; daemon off; pid {r.tmp}/nginx.pid; error_log {r.tmp}/error.log;
        events {{ worker_connections 512; }}
        http {{
            access_log off; sendfile on; tcp_nopush on; keepalive_requests 100000; client_max_body_size 100m;
            client_body_temp_path {r.tmp}/body; proxy_temp_path {r.tmp}/proxy; fastcgi_temp_path {r.tmp}/fastcgi;
            uwsgi_temp_path {r.tmp}/uwsgi; scgi_temp_path {r.tmp}/scgi;
            server {{
                listen 127.0.0.1:{port} backlog=512; root {site};
                location /echo {{ proxy_pass http://127.0.0.1:{port}/sink; proxy_request_buffering off; }}
                location /sink {{ return 200 "got $content_length\\n"; }}
            }}
        }}""")
    r.server([need("nginx"), "-c", conf, "-p", r.tmp, "-e", f"{r.tmp}/error.log"], port, stop_signal=signal.SIGQUIT)
    return port


def requests_client(r, need, port):
    return r.run([sys.executable, "-c", REQUESTS_CLIENT, f"http://127.0.0.1:{port}"], timeout=60).text


@pytest.mark.parametrize("workers", [1, 4])
def test_nginx_requests(r, same_as_plain, need, workers):
    same_as_plain(lambda r: requests_client(r, need, nginx(r, need, workers)))
    r.accelerated()


@pytest.mark.parametrize("workers", [1, 4])
def test_nginx_curl(same_as_plain, need, workers):
    def scenario(r):
        url = f"http://127.0.0.1:{nginx(r, need, workers)}"
        curl = [need("curl"), "-sS", "--max-time", "30"]
        many = r.run([*curl, *[f"{url}/small.txt"] * 200]).text
        large = hashlib.sha1(r.run([*curl, f"{url}/large.bin"]).stdout).hexdigest()
        slow = hashlib.sha1(r.run([*curl, "--limit-rate", "10M", f"{url}/large.bin"]).stdout).hexdigest()
        (r.tmp / "upload").write_bytes(b"u" * 5_000_000)
        post = r.run([*curl, "-H", "Expect:", "--data-binary", f"@{r.tmp}/upload", f"{url}/echo"]).text
        head = r.run([*curl, "-I", f"{url}/large.bin"]).text.split("\n")[0]
        return many, large, slow, post, head

    many, *_ = same_as_plain(scenario)
    assert many == "small\n" * 200


def test_nginx_reload(r, need):
    """Workers are replaced while clients keep coming."""
    port = nginx(r, need, 2)
    server = r.programs[-1]
    for _ in range(5):
        server.popen.send_signal(signal.SIGHUP)
        out = r.run([need("curl"), "-sS", "--max-time", "30", *[f"http://127.0.0.1:{port}/small.txt"] * 100]).text
        assert out == "small\n" * 100


def haproxy(r, need, backend, threads, *options):
    port = r.free_port()
    conf = r.tmp / "haproxy.cfg"
    conf.write_text(f"""
global
    nbthread {threads}
    maxconn 500
    {' '.join(options[:1])}
    {' '.join(options[1:])}
defaults
    mode http
    timeout connect 10s
    timeout client 30s
    timeout server 30s
    option http-keep-alive
frontend f
    bind 127.0.0.1:{port}
    default_backend b
backend b
    http-reuse always
    server one 127.0.0.1:{backend}
""")
    r.server([need("haproxy"), "-db", "-f", conf], port, stop_signal=signal.SIGTERM)
    return port


@pytest.mark.parametrize("threads", [1, 2])
def test_haproxy_before_nginx(r, same_as_plain, need, threads):
    same_as_plain(lambda r: requests_client(r, need, haproxy(r, need, nginx(r, need, 1), threads)))
    r.accelerated()


@pytest.mark.parametrize("options", [["noepoll"], ["noepoll", "nopoll"]], ids=["poll", "select"])
def test_haproxy_without_epoll(r, same_as_plain, need, options):
    same_as_plain(lambda r: requests_client(r, need, haproxy(r, need, nginx(r, need, 1), 1, *options)))
    r.accelerated()


def test_apache_prefork(r, same_as_plain, need):
    def scenario(r):
        site, port = make_site(r), r.free_port()
        conf = r.tmp / "apache.conf"
        modules = "/usr/lib/apache2/modules"
        conf.write_text(f"""
ServerName localhost
ServerRoot {r.tmp}
PidFile {r.tmp}/apache.pid
ErrorLog {r.tmp}/apache-error.log
Mutex pthread
Listen 127.0.0.1:{port}
LoadModule mpm_prefork_module {modules}/mod_mpm_prefork.so
LoadModule authz_core_module {modules}/mod_authz_core.so
User www-data
Group www-data
StartServers 3
MinSpareServers 1
MaxSpareServers 3
MaxRequestWorkers 8
KeepAlive On
MaxKeepAliveRequests 0
EnableSendfile On
DocumentRoot {site}
<Directory {site}>
    Require all granted
</Directory>
""")
        r.server([need("apache2"), "-f", conf, "-DFOREGROUND"], port)
        return requests_client(r, need, port)

    same_as_plain(scenario)
    if r.mode != "shunt":
        r.not_accelerated()
