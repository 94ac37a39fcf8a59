"""SHUNT_LOG: what the library tells, where, and that it tells nothing unasked."""

import os
import re
import socket

import pytest

MOVED = re.compile(r"^shunt\[\d+\]: fd \d+, 127\.0\.0\.1:\d+ to 127\.0\.0\.1:\d+: in memory$")
BACK = re.compile(r"^shunt\[\d+\]: fd \d+, 127\.0\.0\.1:\d+ to 127\.0\.0\.1:\d+: on tcp: urgent data$")


def lines_of(r, text):
    """The messages, which only a library that moves connections has any of."""
    lines = text.splitlines()
    if r.mode != "shunt":
        assert lines == []
    return lines


def test_silent_unasked(r):
    result = r.run([r.apps / "streams", "lines"], env={"WARM": 400})
    assert result.stdout == b"" and result.stderr == b""
    r.accelerated()


def test_file_of_both_ends(r):
    log = r.tmp / "shunt.log"
    log.write_text("")
    result = r.run([r.apps / "urgent", "out_of_band"], env={"WARM": 400, "SHUNT_LOG": log, "SHUNT_LOG_LEVEL": "info"})
    assert result.stdout == b"" and result.stderr == b""
    lines = lines_of(r, log.read_text())
    if r.mode == "shunt":
        assert len([line for line in lines if MOVED.match(line)]) == 2, lines
        assert [line for line in lines if BACK.match(line)], lines


def test_stderr_and_levels(r):
    for level, wanted in (("info", True), ("warn", False), ("error", False)):
        result = r.run([r.apps / "flags", "peek"], env={"WARM": 400, "SHUNT_LOG": "stderr", "SHUNT_LOG_LEVEL": level})
        lines = lines_of(r, result.stderr.decode())
        if r.mode == "shunt":
            assert bool([line for line in lines if MOVED.match(line)]) == wanted, (level, lines)


def test_a_log_that_cannot_be_written_stops_nobody(r):
    result = r.run([r.apps / "flags", "peek"], env={"WARM": 400, "SHUNT_LOG": "/proc/nowhere/log", "SHUNT_LOG_LEVEL": "debug"})
    assert result.stdout == b"" and result.stderr == b""
    r.accelerated()


@pytest.mark.alone("there is one /dev/log, into which servers of other tests would write")
@pytest.mark.skipif(os.path.exists("/dev/log"), reason="this machine has a system log, which is not ours to read")
def test_syslog(r):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as log:
        log.bind("/dev/log")
        try:
            os.chmod("/dev/log", 0o666)
            r.run([r.apps / "flags", "peek"], env={"WARM": 400, "SHUNT_LOG": "syslog", "SHUNT_LOG_LEVEL": "info"})
            log.setblocking(False)
            lines = []
            while len(lines) < 2 and r.mode == "shunt":
                lines.append(log.recv(1000).decode())
            for line in lines:
                assert line.startswith("<14>") and MOVED.match(line.removeprefix("<14>")), lines
        finally:
            os.unlink("/dev/log")
