"""What the tests ask of the operating system: a /dev/shm and a network of their own, their descendants, where a process hangs, free ports."""

import ctypes
import fcntl
import os
import random
import shutil
import signal
import socket
import subprocess
import time
import traceback
from contextlib import contextmanager
from pathlib import Path

import pytest

SHM = Path("/dev/shm")
BOARD = SHM / "shunt-board"
HOST = Path("/run/shunt")
CLONE_NEWNS = 0x00020000
CLONE_NEWNET = 0x40000000
PR_SET_CHILD_SUBREAPER = 36
libc = ctypes.CDLL(None, use_errno=True)


def own_shm():
    """Gives this process and its children a /dev/shm of their own, so that other runs on the machine cannot disturb. Needs root;
    returns whether it worked."""
    if os.geteuid() != 0 or libc.unshare(CLONE_NEWNS) != 0:
        return False
    commands = [["mount", "--make-rprivate", "/"], ["mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", str(SHM)]]
    if HOST.is_dir():
        # Nor the board of a host whose containers take part.
        commands.append(["mount", "-t", "tmpfs", "tmpfs", str(HOST)])
    for command in commands:
        if subprocess.run(command, stderr=subprocess.DEVNULL).returncode != 0:
            return False
    return True


_first_net = os.stat("/proc/self/ns/net").st_ino


def own_net():
    """Gives this process and its children a network of their own, with loopback only. Needs root; returns whether it worked."""
    return (os.geteuid() == 0 and libc.unshare(CLONE_NEWNET) == 0
            and subprocess.run(["ip", "link", "set", "lo", "up"]).returncode == 0)


def outside():
    """What stands in front of a command that needs the machine's network: the parent of one that has its own still has it."""
    return [] if os.stat("/proc/self/ns/net").st_ino == _first_net else ["nsenter", f"--net=/proc/{os.getppid()}/ns/net"]


# Processes that are there for all tests.
OF_THE_RUN = set()


def adopt_orphans():
    """Descendants whose parents died become our children, so that none can hide."""
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _stat(pid):
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    state, parent = text.rpartition(")")[2].split()[:2]
    return state, int(parent)


def descendants():
    """{pid: command line} of all living processes that descend from this one, but for those of the whole run."""
    parents = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (found := _stat(entry)):
            parents[int(entry)] = found
    ours = {os.getpid()}
    parents = {pid: found for pid, found in parents.items() if pid not in OF_THE_RUN}
    grew = True
    while grew:
        more = {pid for pid, (_, parent) in parents.items() if parent in ours} - ours
        ours |= more
        grew = bool(more)
    result = {}
    for pid in ours - {os.getpid()}:
        if parents[pid][0] == "Z":
            continue
        try:
            result[pid] = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:
            pass
    return result


def reap():
    """Collects adopted children that have ended. Call it only when no Popen of ours is still waited for."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def where(pid):
    """Where each thread of a process is, for the message of a test that hangs."""
    lines = []
    for task in sorted(Path(f"/proc/{pid}/task").glob("*")):
        try:
            state = _stat(f"{pid}/task/{task.name}")
            stack = (task / "stack").read_text().replace("[<0>] ", "").split("\n")[:4]
            syscall = (task / "syscall").read_text().split()[:4]
            lines.append(f"  thread {task.name} {state and state[0]} syscall {' '.join(syscall)} in {' < '.join(filter(None, stack))}")
        except OSError:
            pass
    return "\n".join(lines)


def briefly_where(pid):
    """The same of its first thread in a few words, for the line that a summary of many tests shows; not by its stack, which only root may read."""
    try:
        name, function = (Path(f"/proc/{pid}/{file}").read_text().strip() for file in ("comm", "wchan"))
    except OSError:
        return f"{pid} gone"
    state = (_stat(pid) or "?")[0]
    return f"{name} {state} in {'the program' if function in ('', '0') else function}"


def kill_group(pid):
    """Kills what is left of the process group that `pid` led when we started it; every program here is started as the leader of one. Once
    all of it is gone the number may be somebody else's, so only descendants of ours are killed."""
    try:
        os.killpg(pid, 0)
    except (ProcessLookupError, PermissionError):
        return
    for member in descendants():
        try:
            if os.getpgid(member) == pid:
                os.kill(member, signal.SIGKILL)
        except ProcessLookupError:
            pass


def free_port():
    """A port that nobody listens on, below the range from which the kernel takes ports for connections."""
    while True:
        port = random.randrange(15000, 32000)
        with socket.socket() as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                s.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue


def listens(port):
    """Whether somebody listens on this port of 127.0.0.1, or of all addresses."""
    wanted = {f"{address}:{port:04X}" for address in ("0100007F", "00000000")}
    with open("/proc/net/tcp") as table:
        return any(words[1] in wanted and words[3] == "0A" for words in map(str.split, table))


def shm_left():
    """What is in /dev/shm besides the board."""
    return {entry for entry in os.listdir(SHM) if entry != BOARD.name}


@contextmanager
def building(place):
    """Holds others up that would build the same in `place` beside us."""
    place.mkdir(parents=True, exist_ok=True)
    with open(place / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def program(name, *places):
    """The path of a program of tests/packages.txt: in `places`, or where programs are. A test that lacks it does not run."""
    path = shutil.which(name, path=":".join([*places, os.environ["PATH"], "/usr/sbin", "/sbin", "/usr/local/sbin"]))
    return path or lacking(name)


def lacking(name):
    """Ends a test for which something is not installed: `make test` lists it as not run, at its end. Where all was to be installed (in CI)
    it fails."""
    if os.environ.get("BOOTSTRAP") == "install":
        pytest.fail(f"{name} is not installed: see tests/packages.txt")
    pytest.skip(f"{name} is not installed")


def not_started(error):
    """The bare name of a program that subprocess did not find, if that is what the error says; other files are other errors."""
    if not isinstance(error, FileNotFoundError) or not error.filename:
        return None
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    raised_by_subprocess = frame.f_code.co_name == "_execute_child" and frame.f_globals.get("__name__") == "subprocess"
    name = os.fsdecode(error.filename)
    return name if raised_by_subprocess and "/" not in name else None


def until(condition, seconds, what):
    """Waits for a condition by asking, and fails loudly when the time is up."""
    end = time.monotonic() + seconds
    while not (result := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(0.01)
    return result
