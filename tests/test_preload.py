"""What else may be in front of libc, or in the program itself: other allocators, in both orders; sanitizers; unusual links."""

import glob
import subprocess
import sys

import pytest

from harness import modes, system

EXAMPLES = [("echo", "small_messages"), ("threads", "full_duplex"), ("forks", "in_turn"), ("spawns", "all_but_two"),
            ("streams", "lines")]


def installed(pattern):
    found = sorted(glob.glob(f"/usr/lib/*/{pattern}"))
    return found[0] if found else system.lacking(pattern)


@pytest.mark.parametrize("order", ["before", "after"])
@pytest.mark.parametrize("allocator", ["libjemalloc.so.2", "libtcmalloc_minimal.so.4"])
def test_allocator(r, mode, allocator, order):
    """An allocator that is preloaded, too: one that makes system calls and takes locks of its own."""
    library = installed(allocator)
    ours = r.environment().get("LD_PRELOAD")
    both = [library] if ours is None else [library, ours] if order == "before" else [ours, library]
    for program, name in EXAMPLES:
        report = r.new_report()
        r.run([r.apps / program, name], env={"LD_PRELOAD": ":".join(both), "SHUNT_REPORT": report.path})
        r.accelerated(report)


@pytest.mark.parametrize("link", ["linked", "ubsan"])
def test_link(r, link):
    """echo.c as a position-independent program with -z now and -Bsymbolic, and with UndefinedBehaviorSanitizer."""
    for name in ("small_messages", "old_calls", "many_connections", "turnover"):
        report = r.new_report()
        r.run([r.apps / f"echo_{link}", name])
        r.accelerated(report)


def test_static_pie(r):
    """No library gets in: it runs plain."""
    r.run([r.apps / "echo_static_pie", "small_messages"])
    assert r.report.processes == 0


@pytest.mark.parametrize("name", ["small_messages", "old_calls", "turnover"])
def test_address_sanitizer(r, mode, name):
    """Its run-time library wants to be the first; `shunt run` sees to it."""
    program = [r.apps / "echo_asan", name]
    if mode == "plain":
        r.run(program)
    else:
        assert modes.command(), "build the command `shunt`"
        r.run([modes.command(), "run", "--", *program], env={"LD_PRELOAD": "", "SHUNT_LIB": modes.library()})
    r.accelerated()


def test_address_sanitizer_without_shunt_run(r, mode):
    """With LD_PRELOAD by hand there is AddressSanitizer's own message, or its option."""
    program = [r.apps / "echo_asan", "small_messages"]
    if mode != "plain":
        assert b"ASan runtime does not come first" in r.run(program, status=None).stderr
    report = r.new_report()
    r.run(program, env={"ASAN_OPTIONS": "verify_asan_link_order=0"})
    r.accelerated(report)


def test_what_the_sanitizer_finds(r, mode, tmp_path):
    """A real mistake is reported under Shunt as without: a recv() into too small a buffer."""
    source = tmp_path / "mistake.c"
    source.write_text("""
        #include <stdlib.h>
        #include <sys/socket.h>
        int main(int argc, char **argv) {
            (void)argv;
            char *small = malloc(4);
            return recv(0, small, 400 * argc, 0) + small[4 * argc] > 0;
        }
    """)
    subprocess.run(["gcc", "-fsanitize=address", "-o", tmp_path / "mistake", source], check=True)
    launcher = [] if mode == "plain" else [modes.command(), "run", "--"]
    result = r.run([*launcher, tmp_path / "mistake"], env={"LD_PRELOAD": "", "SHUNT_LIB": modes.library() or ""}, status=None)
    assert b"heap-buffer-overflow" in result.stderr


# Loads a library past us, then exchanges lines between two processes.
DEEP = """
import ctypes, os, socket, sys

ctypes.CDLL(sys.argv[1], mode=os.RTLD_NOW | os.RTLD_DEEPBIND)
listener = socket.create_server(("127.0.0.1", 0))
child = os.fork()
if child:
    peer = listener.accept()[0]
    while line := peer.recv(100):
        peer.sendall(line)
    os._exit(os.waitpid(child, 0)[1])
peer = socket.create_connection(listener.getsockname())
for i in range(300):
    peer.sendall(b"a line")
    assert peer.recv(100) == b"a line"
peer.close()
os._exit(0)
"""
THREAD = """
#include <pthread.h>
#include <unistd.h>
static void *body(void *unused) { pause(); return unused; }
__attribute__((constructor)) static void begin(void) { pthread_t thread; pthread_create(&thread, 0, body, 0); }
"""
DEEP_BIND = 37


@pytest.mark.parametrize("how", ["path", "name", "thread"])
def test_a_library_that_is_bound_deeply(r, mode, how):
    """By its path it is bound to us. One that is searched for, or has started a thread, keeps the process on TCP."""
    name = r.apps / "library.so" if how == "path" else "libm.so.6"
    if how == "thread":
        name, source = r.tmp / "thread.so", r.tmp / "thread.c"
        source.write_text(THREAD)
        subprocess.run(["cc", "-shared", "-fPIC", "-pthread", "-o", name, source], check=True, timeout=60)
    r.run([sys.executable, "-c", DEEP, name])
    if how == "path":
        r.accelerated()
    elif mode == "shunt":
        assert r.report.promoted == 0
        assert r.report.reasons() == {DEEP_BIND: 2}
