"""Languages with socket layers of their own: Node (libuv), Java (blocking, NIO, channels), Go (no libc at all), Ruby, PHP."""

import signal
import subprocess

import pytest

from harness import modes, system

SOURCES = modes.ROOT / "tests/apps"


def test_node(r, same_as_plain, need):
    def scenario(r):
        port = r.free_port()
        r.server([need("node"), SOURCES / "node/echo.js", "server", port], port, stop_signal=signal.SIGTERM)
        return r.run([need("node"), SOURCES / "node/echo.js", "client", port], timeout=60).text

    assert "DIFFERENT" not in same_as_plain(scenario)
    r.accelerated()


@pytest.fixture(scope="session")
def java_classes(tmp_path_factory):
    out = tmp_path_factory.mktemp("java")
    subprocess.run([system.program("javac"), "-d", out, SOURCES / "java/Echo.java"], check=True)
    return out


@pytest.mark.parametrize("way", ["blocking", "nio", "channels"])
def test_java(r, same_as_plain, need, java_classes, way):
    java = [need("java"), "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-cp", java_classes, "Echo", way]

    def scenario(r):
        port = r.free_port()
        r.server([*java, "server", port], port)
        return r.run([*java, "client", port], timeout=90).text

    same_as_plain(scenario)
    r.accelerated()


def test_java_channels_with_nio(r, same_as_plain, need, java_classes):
    """A client of one kind with a server of another."""
    java = [need("java"), "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-cp", java_classes, "Echo"]

    def scenario(r):
        port = r.free_port()
        r.server([*java, "nio", "server", port], port)
        return [r.run([*java, way, "client", port], timeout=90).text for way in ("blocking", "channels")]

    same_as_plain(scenario)


@pytest.fixture(scope="session")
def go_program(tmp_path_factory):
    out = tmp_path_factory.mktemp("go") / "echo"
    go = system.program("go")
    # Whoever comes second finds Go's own libraries compiled in its cache.
    with system.building(modes.ROOT / "build/go"):
        subprocess.run([go, "build", "-o", out, SOURCES / "go/main.go"], check=True)
    return out


def test_go(r, same_as_plain, go_program):
    def scenario(r):
        port = r.free_port()
        r.server([go_program, "server", port], port)
        return r.run([go_program, "client", port], timeout=60).text

    same_as_plain(scenario)
    assert r.report.promoted == 0


def test_go_with_others(r, same_as_plain, need, go_program):
    """One end that no library can help, the other under Shunt."""

    def scenario(r):
        port = r.free_port()
        r.server([go_program, "raw", port], port)
        return r.run([need("ruby"), SOURCES / "echo.rb", "client", port], timeout=60).text

    same_as_plain(scenario)
    assert r.report.promoted == 0


def test_ruby(r, same_as_plain, need):
    def scenario(r):
        port = r.free_port()
        r.server([need("ruby"), SOURCES / "echo.rb", "server", port], port, stop_signal=signal.SIGKILL)
        return r.run([need("ruby"), SOURCES / "echo.rb", "client", port], timeout=60).text

    same_as_plain(scenario)
    r.accelerated()


@pytest.mark.parametrize("language, program", [
    ("python3", "lines.py"), ("perl", "lines.pl"), ("tclsh", "lines.tcl"), ("ruby", "lines.rb"),
])
def test_buffered(r, same_as_plain, need, language, program):
    """Each language's buffered input and output on a socket, against a server in C that returns what it gets."""
    interpreter = need(language)

    def scenario(r):
        port = r.free_port()
        r.server([r.apps / "returns", port], port)
        return r.run([interpreter, SOURCES / program, port], timeout=60).text

    assert same_as_plain(scenario) == "right\n"
    r.accelerated()


def test_php(r, same_as_plain, need):
    """php -S, and file_get_contents as its client."""

    def scenario(r):
        site, port = r.tmp / "php", r.free_port()
        site.mkdir()
        (site / "index.php").write_text(
            '<?php header("X-Method: " . $_SERVER["REQUEST_METHOD"]); echo strlen(file_get_contents("php://input")), " ", '
            '$_GET["n"] ?? "-", "\\n", str_repeat("php ", (int)($_GET["n"] ?? 0));')
        r.server([need("php"), "-S", f"127.0.0.1:{port}", "-t", site], port)
        client = ('for ($i = 0; $i < 60; $i++) { $c = stream_context_create(["http" => ["method" => "POST", "content" => '
                  'str_repeat("p", $i * 5000)]]); echo sha1(file_get_contents("http://127.0.0.1:%d/?n=" . $i * 1000, false, $c)), "\\n"; }')
        return r.run([need("php"), "-r", client % port], timeout=60).text

    same_as_plain(scenario)
