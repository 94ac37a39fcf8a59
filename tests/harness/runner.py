"""Starts the programs of one test in one mode, waits for them with limits, stops them, and checks that nothing is left.

    r.run([...])            to its end; fails the test on a non-zero status or when the time is up; returns the result
    r.spawn([...])          in the background; stopped at the end of the test
    r.server([...], port)   spawn, and wait until the port answers

Output goes to files in r.tmp, so that no pipe can fill up; it is shown when a test fails.
"""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from . import modes, system
from .report import Report

PATIENCE = float(os.environ.get("TEST_PATIENCE", "1"))  # multiplies all limits, for slow machines


class Result:
    def __init__(self, status, stdout, stderr):
        self.status, self.stdout, self.stderr = status, stdout, stderr

    @property
    def text(self):
        return self.stdout.decode(errors="replace")


class Program:
    """A program that was started."""

    def __init__(self, name, popen, out, err, stop_signal):
        self.name, self.popen, self.out, self.err, self.stop_signal = name, popen, out, err, stop_signal
        self.pid = popen.pid

    def wait(self, timeout=30):
        """Its exit status; when the time is up, the test fails and says where the program hangs."""
        try:
            return self.popen.wait(timeout * PATIENCE)
        except subprocess.TimeoutExpired:
            hanging = sorted(system.descendants().items())
            briefly = ", ".join(system.briefly_where(pid) for pid, _ in hanging)
            places = "\n".join(f" {pid} {line}\n{system.where(pid)}" for pid, line in hanging)
            system.kill_group(self.pid)
            self.popen.wait()
            raise AssertionError(f"{self.name} did not end within {timeout * PATIENCE} s: {briefly}; hung at\n{places}\n"
                                 f"{self.output()}") from None

    def alive(self):
        return self.popen.poll() is None

    def kill(self):
        """kill -9, of it and its process group."""
        system.kill_group(self.pid)
        self.popen.wait()

    def stop(self):
        """Asks it to end, then insists. Returns whether it ended when asked."""
        asked = True
        if self.alive():
            self.popen.send_signal(self.stop_signal)
            try:
                self.popen.wait(15 * PATIENCE)
            except subprocess.TimeoutExpired:
                asked = False
        system.kill_group(self.pid)
        self.popen.wait()
        return asked

    def result(self):
        return Result(self.popen.returncode, self.out.read_bytes(), self.err.read_bytes())

    def output(self, most=3000):
        parts = [f"--- {self.name} (status {self.popen.poll()})"]
        for path in (self.out, self.err):
            text = path.read_bytes()[-most:].decode(errors="replace").rstrip()
            if text:
                parts.append(f"{path.name}:\n{text}")
        return "\n".join(parts)


class Runner:
    def __init__(self, mode, apps):
        self.mode, self.apps = mode, apps
        self.tmp = Path(tempfile.mkdtemp(prefix="shunt-test-"))
        self.tmp.chmod(0o755)  # programs that change their user come in too
        self.programs, self.count = [], 0
        self.report = self.new_report()

    # ---- starting ----

    def new_report(self):
        """From now on programs count into a fresh report."""
        self.count += 1
        self.report = Report(self.tmp / f"report-{self.count}")
        return self.report

    def environment(self, **more):
        return modes.environment(self.mode, self.report) | {k: str(v) for k, v in more.items()}

    def spawn(self, argv, *, name=None, env=None, cwd=None, stdin=None, stdout=None, user=None, stop_signal=signal.SIGTERM,
              plain=False):
        """Starts a program. plain: outside Shunt whatever the mode. user: as that user (with its group)."""
        argv = [str(a) for a in argv]
        self.count += 1
        name = name or Path(argv[0]).name
        out, err = (self.tmp / f"{self.count}-{name}.{kind}" for kind in ("out", "err"))
        environment = modes.environment("plain" if plain else self.mode, self.report) | {k: str(v) for k, v in (env or {}).items()}
        extra = {}
        if user:
            entry = pwd.getpwnam(user)
            extra = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
            environment["HOME"] = entry.pw_dir
        with open(out, "wb") as o, open(err, "wb") as e:
            popen = subprocess.Popen(argv, stdin=stdin if stdin is not None else subprocess.DEVNULL, stdout=stdout or o, stderr=e,
                                     env=environment, cwd=cwd or self.tmp, start_new_session=True, **extra)
        program = Program(name, popen, out, err, stop_signal)
        self.programs.append(program)
        return program

    def run(self, argv, *, input=None, timeout=30, status=0, **how):
        """Runs a program to its end. status: the one wanted, None for any."""
        if input is not None:
            path = self.tmp / f"input-{self.count}"
            path.write_bytes(input if isinstance(input, bytes) else input.encode())
            with open(path, "rb") as stdin:
                program = self.spawn(argv, stdin=stdin, **how)
        else:
            program = self.spawn(argv, **how)
        program.wait(timeout)
        if status is not None and program.popen.returncode != status:
            raise AssertionError(f"{' '.join(map(str, argv))}: status {program.popen.returncode}, wanted {status}\n{program.output()}\n"
                                 f"report: {self.report}")
        return program.result()

    def server(self, argv, port, *, host="127.0.0.1", timeout=30, **how):
        program = self.spawn(argv, **how)
        self.wait_port(port, program, host=host, timeout=timeout)
        return program

    def free_port(self):
        return system.free_port()

    def wait_port(self, port, program=None, *, host="127.0.0.1", timeout=30):
        """Until somebody accepts connections; fails at once when `program` ends before."""
        end = time.monotonic() + timeout * PATIENCE
        while True:
            try:
                socket.create_connection((host, port), 1).close()
                return
            except OSError:
                pass
            if program and not program.alive():
                raise AssertionError(f"{program.name} ended instead of listening\n{program.output()}")
            if time.monotonic() > end:
                raise AssertionError(f"nobody listens on port {port}\n{program.output() if program else ''}")
            time.sleep(0.01)

    def wait_listening(self, port, program):
        """Until `program` listens, without connecting to it: for one that takes the first connection for a customer."""
        system.until(lambda: system.listens(port) or not program.alive(), 30 * PATIENCE, f"{program.name} listens")
        assert program.alive(), f"{program.name} ended instead of listening\n{program.output()}"

    # ---- checking ----

    def accelerated(self, report=None, waited=False):
        """Asserts that connections were promoted, or, in modes plain and tcp, that none was. waited: the program went on until they were, so
        in mode far, too."""
        report = report or self.report
        if self.mode in ("shunt", "users") or waited and self.mode == "far":
            assert report.promoted > 0, f"nothing was promoted: {report}"
            assert report.ring_sent > 0, f"no byte went by a ring: {report}"
        else:
            self.not_accelerated(report)

    def not_accelerated(self, report=None):
        report = report or self.report
        if self.mode == "far":
            return
        assert report.promoted == 0, f"in mode {self.mode} something was promoted: {report}"
        if self.mode == "plain":
            assert report.processes == 0, f"plain programs had the library: {report}"

    def show(self):
        print(f"mode {self.mode}, report: {self.report}")
        for program in self.programs:
            print(program.output())

    def stop_all(self):
        """Stops what was started, the last first; returns a list of complaints."""
        return [f"{program.name} did not end when asked to" for program in reversed(self.programs)
                if program.alive() and not program.stop()]

    def finish(self):
        """Stops what was started; returns a list of what is wrong afterwards."""
        wrong = self.stop_all()
        try:
            system.until(lambda: not system.descendants(), 3 * PATIENCE, "no child is left")
        except AssertionError:
            for pid, line in system.descendants().items():
                wrong.append(f"a process was left: {pid} {line}\n{system.where(pid)}")
                os.kill(pid, signal.SIGKILL)
        system.reap()
        if left := system.shm_left():
            wrong.append(f"left in /dev/shm: {sorted(left)}")
            for entry in left:
                (system.SHM / entry).unlink(missing_ok=True)
        shutil.rmtree(self.tmp, ignore_errors=True)
        return wrong
