"""Real servers and their clients on two hosts of a cluster, network namespaces, by libfabric's tcp provider: what they say is what they say with TCP, and their connections have
moved. (Over RDMA verbs: test_ofi_qemu.py. How they behave in all else is tested where they run on one host.)"""

import re
import signal
import subprocess
import sys

import pytest

from harness import system
from harness.cluster import PATIENCE, Cluster
from harness.postgres import PLACES, unprivileged

pytestmark = pytest.mark.alone("servers, clients, agents and progress threads take two processors")


@pytest.fixture
def two():
    """Two hosts."""
    with Cluster("ab") as hosts:
        yield hosts["a"], hosts["b"]


@pytest.fixture
def agents(two):
    """With an agent each."""
    for host in two:
        host.start_agent()
    return two


def until_serves(host, server, port):
    """Asked by the kernel's own means, so that nobody is the server's first customer."""
    def listens():
        assert server.poll() is None, f"the server has ended: {server.communicate(timeout=5)}"
        return f":{port}" in subprocess.run(host.within(["ss", "-Htln"]), capture_output=True, text=True, check=True).stdout
    system.until(listens, 30 * PATIENCE, f"somebody listens at port {port}")


def ended(program, seconds=60, said=None):
    said, wrong = program.communicate(said, timeout=seconds * PATIENCE)
    assert program.returncode == 0, f"{said}\n{wrong}"
    return said


def have_moved(*programs):
    for program in programs:
        assert program.report.promoted > 0 and program.report.ring_sent > 0, f"{program.args}: {program.report}"


def test_redis(agents, need):
    a, b = agents
    server = b.run([need("redis-server"), "--port", "7001", "--bind", "0.0.0.0", "--protected-mode", "no", "--save", "", "--daemonize", "no"])
    until_serves(b, server, 7001)
    client = a.run([need("redis-benchmark"), "-h", b.address, "-p", "7001", "-t", "set,get,lpush,lrange_100", "-n", "20000", "-c", "4", "-d", "500", "--csv"])
    said = ended(client)
    rates = dict(re.findall(r'^"([^"]+)","([\d.]+)"', said, re.M))
    assert {"SET", "GET", "LPUSH (needed to benchmark LRANGE)", "LRANGE_100 (first 100 elements)"} <= rates.keys(), said
    server.terminate()
    ended(server)
    have_moved(client, server)


# Fetches a page by one connection until it is told to stop, and some hundred times more, and looks at each byte.
FETCH = """
import http.client, select, sys
conn, page, count, left = http.client.HTTPConnection(sys.argv[1], 7002), open(sys.argv[2], "rb").read(), 0, 300
while left:
    left -= bool(select.select([sys.stdin], [], [], 0)[0])
    conn.request("GET", "/page")
    answer = conn.getresponse()
    assert answer.status == 200 and answer.read() == page
    count += 1
print(count)
"""


def test_nginx(agents, need, tmp_path):
    a, b = agents
    (tmp_path / "page").write_bytes(bytes(range(256)) * 80)
    (tmp_path / "nginx.conf").write_text(f"""
        worker_processes 2; daemon off; user root; pid {tmp_path}/pid; error_log {tmp_path}/error.log; events {{ worker_connections 512; }}
        http {{ access_log off; sendfile on; keepalive_requests 1000000; client_body_temp_path {tmp_path}/body; proxy_temp_path {tmp_path}/proxy;
            fastcgi_temp_path {tmp_path}/fastcgi; uwsgi_temp_path {tmp_path}/uwsgi; scgi_temp_path {tmp_path}/scgi;
            server {{ listen 7002; root {tmp_path}; }} }}""")
    server = b.run([need("nginx"), "-c", tmp_path / "nginx.conf", "-p", tmp_path, "-e", tmp_path / "error.log"])
    until_serves(b, server, 7002)
    client = a.run([sys.executable, "-c", FETCH, b.address, tmp_path / "page"])
    system.until(lambda: client.report.promoted > 0 or client.poll() is not None, 30 * PATIENCE, "the connection has moved")
    assert int(ended(client, said="stop\n")) > 300
    server.terminate()
    ended(server)
    have_moved(client, server)


def test_postgres(two, need):
    """Each of its connections is had by a process of its own, a child of the server's. It does not run as root, and an agent serves its own user."""
    a, b = two
    data = b.cluster.tmp / "data"
    for host in two:
        if user := unprivileged():
            host.be_used_by(user)
        host.start_agent()
    ended(b.run([need("initdb", *PLACES), "-D", data, "-A", "trust", "-U", "tester", "--no-sync", "--locale=C", "-E", "UTF8"], plain=True), 120)
    with open(data / "pg_hba.conf", "a") as rules:
        rules.write("host all all 10.77.0.0/16 trust\n")
    server = b.run([need("postgres", *PLACES), "-D", data, "-p", 7003, "-h", "0.0.0.0", "-k", "", "-F", "-c", "dynamic_shared_memory_type=mmap"])
    until_serves(b, server, 7003)
    pgbench = [need("pgbench", *PLACES), "-h", b.address, "-p", 7003, "-U", "tester"]
    ended(a.run([*pgbench, "-i", "-q", "postgres"], plain=True))
    client = a.run([*pgbench, "-c", "4", "-j", "2", "-T", "4", "-M", "prepared", "postgres"])
    said = ended(client)
    assert "number of failed transactions: 0 " in said and int(re.search(r"actually processed: (\d+)", said)[1]) > 10, said
    server.send_signal(signal.SIGINT)
    ended(server)
    have_moved(client, server)
