"""Every example of the programs in tests/vipl, which link with libvipl.so as any VIPL program does: two processes on one host. The examples
check themselves; here they are found (by reading the tables at the end of the C files) and run. What they leave behind is looked
for: processes, and files of shared memory.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness import system

HERE = Path(__file__).parent
ROOT = HERE.parent
PROGRAMS = ROOT / "build" / "vipl"
RELEASE = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release"
ROW = re.compile(r'^    \{"(\w+)", \w+, \w+, ([A-Z0-9_| ]+)\},', re.M)


@pytest.fixture(scope="session", autouse=True)
def built():
    """The programs, and the library if it is not there yet."""
    with system.building(PROGRAMS):
        if not (RELEASE / "libvipl.so").exists():
            subprocess.run([ROOT / "scripts/cargo", "build", "--release", "--locked", "-p", "vipl"], cwd=ROOT, check=True, timeout=600)
        subprocess.run(["make", "-s", "-C", HERE / "vipl", f"OUT={PROGRAMS}", f"LIB={RELEASE}"], check=True, timeout=300)


def examples():
    for source in sorted((HERE / "vipl").glob("*.c")):
        for name, flags in ROW.findall(source.read_text()):
            marks = pytest.mark.alone("it measures processor time") if "MEASURES" in flags else ()
            yield pytest.param(source.stem, name, marks=marks, id=f"{source.stem}-{name}")


def run(argv, timeout=60, **how):
    result = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout, **how)
    assert result.returncode == 0, f"{argv}: status {result.returncode}\n{result.stdout}{result.stderr}"
    return result


@pytest.mark.parametrize("program, name", list(examples()))
def test_example(program, name):
    run([PROGRAMS / program, name])


# Wherever buffers lie, messages go alike.
@pytest.mark.parametrize("program, name", [one for one in examples() if one.values[0] in ("transfer", "cq")])
def test_example_with_allocated_memory(program, name):
    run([PROGRAMS / program, name], env=os.environ | {"POOLS": "allocated"})


# `make checked` runs all of them, elsewhere one of each program is enough.
CHECKED = os.environ.get("CHECKED") == "full"
ONE_OF_EACH = {"calls": "posted_memory", "connect": "peers", "fork": "apart", "ranges": "short", "cq": "many_waited", "states": "disconnected", "transfer": "segments"}


def checked_examples():
    return [one for one in examples() if CHECKED or ONE_OF_EACH[one.values[0]] == one.values[1]]


@pytest.mark.parametrize("program, name", checked_examples())
def test_under_valgrind(program, name):
    """Nothing that valgrind knows of: memory that is read before it was written, or that is nobody's."""
    # One thread of a process runs at a time under valgrind: a program that polls would keep the library's thread from its turn.
    valgrind = ["valgrind", "-q", "--error-exitcode=9", "--fair-sched=try", f"--suppressions={HERE / 'vipl' / 'valgrind.supp'}"]
    run([*valgrind, PROGRAMS / program, name], timeout=300, env=os.environ | {"PATIENCE": "20"})


@pytest.fixture(scope="session")
def sanitized():
    """The library and the programs with AddressSanitizer in both, the programs with UndefinedBehaviorSanitizer, too."""
    folder, out = RELEASE.parent / "asan", ROOT / "build" / "vipl-asan"
    machine = f"{os.uname().machine}-unknown-linux-gnu"
    # Rust's own sanitizers want a nightly compiler, or one that is told to behave like one.
    flags = os.environ | {"RUSTC_BOOTSTRAP": "1", "RUSTFLAGS": "-Zsanitizer=address"}
    subprocess.run([ROOT / "scripts/cargo", "build", "--release", "--locked", "-p", "vipl", "--target", machine, "--target-dir", folder],
                   cwd=ROOT, env=flags, check=True, timeout=900)
    subprocess.run(["make", "-s", "-C", HERE / "vipl", f"OUT={out}", f"LIB={folder / machine / 'release'}",
                    "CFLAGS=-O1 -g -Wall -Wextra -fsanitize=address,undefined -fno-sanitize-recover=all"], check=True, timeout=300)
    return out


if CHECKED:
    @pytest.mark.parametrize("program, name", checked_examples())
    def test_under_asan(sanitized, program, name):
        run([sanitized / program, name], timeout=300)


def test_soname():
    """What programs ask for that are linked with it."""
    assert "[libvipl.so.1]" in run(["readelf", "-d", PROGRAMS / "calls"]).stdout


STRANGER = """
import os, socket, sys, time
who, role, name = int(sys.argv[1]), sys.argv[2], b"\\0" + os.fsencode(sys.argv[3])
os.setgroups([]); os.setgid(who); os.setuid(who)
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
if role == "waits":
    s.bind(name); s.listen(8); print("ready", flush=True)
    while True:
        came, _ = s.accept()
        came.settimeout(5)
        bytes, control, _, _ = came.recvmsg(4096, socket.CMSG_LEN(64))
        print(len(bytes), len(control), flush=True)
print("ready", flush=True)
kept = []
while True:
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        s.connect(name)
        if role == "speaks":
            s.send(bytes(360))
        kept.append(s)
    except OSError:
        pass
    time.sleep(0.005)
    del kept[:-400]
"""


def stranger(role, discriminator, user=54321):
    """One of another user at the name of an address, which is predictable, who listens there, or connects without a word, or with noise."""
    name = f"shunt-via-{os.geteuid()}-d{chr(len(discriminator))}{discriminator}"
    process = subprocess.Popen([sys.executable, "-c", STRANGER, str(user), role, name], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become somebody else")
@pytest.mark.parametrize("user", [54321, 65534])
def test_stranger_hears_nothing(user):
    """A client finds nobody where another user waits, and sends nothing there. Root's client is no exception, nor is user nobody."""
    thief = stranger("waits", "nobody", user)
    try:
        run([PROGRAMS / "connect", "refused_by_strangers"])
    finally:
        thief.kill()
    assert [line for line in thief.communicate()[0].splitlines() if line != "0 0"] == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become somebody else")
@pytest.mark.parametrize("role, user", [("silent", 54321), ("speaks", 54321), ("silent", 0), ("speaks", 0)])
def test_strangers_delay_nobody(role, user):
    """Any number that connect to a server and say nothing, or nonsense, one of its own user among them: others' connections are made at once."""
    crowd = [stranger(role, "crowded", user) for _ in range(2)]
    try:
        run([PROGRAMS / "connect", "crowded"], timeout=30)
    finally:
        for one in crowd:
            one.kill()
            one.communicate()


@pytest.mark.parametrize("program, words, says", [
    ("pingpong", ["200"], 5), ("bandwidth", ["1"], 5), ("many", ["3"], 1),
])
def test_documented_example(program, words, says, tmp_path):
    """The programs that are meant to be read, in strict C, and what they print: a figure on each line."""
    run(["cc", "-std=c11", "-D_POSIX_C_SOURCE=200809L", "-Wall", "-Wextra", "-Wno-unused-function", "-Werror", "-I", ROOT / "crates/vipl/include",
         "-o", tmp_path / program, ROOT / f"crates/vipl/examples/{program}.c", "-L", RELEASE, "-lvipl", f"-Wl,-rpath,{RELEASE}"])
    usage = subprocess.run([tmp_path / program], capture_output=True, text=True, timeout=60)
    assert usage.returncode == 2 and usage.stderr.startswith("usage:")
    server = subprocess.Popen([tmp_path / program, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        client = run([tmp_path / program, *words, "localhost"])
        out, errors = server.communicate(timeout=60)
    finally:
        server.kill()
    assert server.returncode == 0, errors
    lines = (client.stdout + out).splitlines()
    assert len(lines) == says and all(re.search(r": +[0-9.]+ ", line) for line in lines), lines


@pytest.mark.parametrize("compiler, standard", [
    ("gcc", "gnu89"), ("gcc", "c11"), ("clang", "gnu89"), ("clang", "c11"), ("g++", "c++17"), ("clang++", "c++17"),
])
def test_header(compiler, standard, tmp_path):
    """C89 with anonymous unions, C11, C++17, both spellings of a descriptor, no warning."""
    system.program(compiler)
    plus = compiler.endswith("++")
    source = tmp_path / f"spellings.{'cc' if plus else 'c'}"
    source.write_text("""
#include <vipl.h>
int main(void) {
    VIP_DESCRIPTOR d;
    d.CS.Length = 1;
    d.Control.Length = d.CS.Length;
    d.DS[0].Local.Length = 2;
    d.Data[0].Length = d.DS[0].Local.Length;
    d.DS[0].Remote.Data.AddressBits = 3;
    return sizeof d == 64 && VIP_ERROR_NOT_SUPPORTED == 16 ? 0 : (int)d.Data[0].Length;
}
""")
    run([compiler, f"-std={standard}", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-I", ROOT / "crates/vipl/include",
         "-o", tmp_path / "spellings", source])
    run([tmp_path / "spellings"])
