"""What a program that an accelerated one starts finds in its environment and on its output: nothing of ours where that would be seen."""

import os
import shutil
import subprocess
import sys

import pytest

# How Python starts a program: fork() and exec(), posix_spawn(), and by libc itself.
WAYS = {
    "exec": "pid = os.fork() or os.execve({argv}[0], {argv}, {env}); os.waitpid(pid, 0)",
    "spawn": "os.waitpid(os.posix_spawn({argv}[0], {argv}, {env}), 0)",
    "system": "os.environ.clear(); os.environ.update({env}); os.system(' '.join({argv}))",
    "popen": "libc = ctypes.CDLL(None); libc.popen.restype = ctypes.c_void_p; os.environ.clear(); os.environ.update({env}); "
             "libc.pclose(ctypes.c_void_p(libc.popen(' '.join({argv}).encode(), b'w')))",
}


def start(r, way, argv, env, before="", **more):
    code = f"import ctypes, os\n{before}\n" + WAYS[way].format(argv=repr(argv), env=env)
    return subprocess.run([sys.executable, "-c", code], env=r.environment() | more, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("way", ["exec", "spawn"])
def test_an_empty_environment_stays_empty(r, mode, way):
    done = start(r, way, ["/usr/bin/env"], "{}")
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)
    if mode == "shunt":
        assert r.report.reasons().get(44) == 1, r.report


@pytest.mark.parametrize("way", ["exec", "spawn"])
def test_an_option_fills_it(r, mode, way):
    done = start(r, way, ["/usr/bin/env"], "{}", SHUNT_EMPTY_ENV="on")
    assert ("LD_PRELOAD=" in done.stdout) == (mode == "shunt"), done


@pytest.mark.parametrize("way", ["exec", "spawn"])
def test_one_without_us_gets_us_again(r, mode, way):
    done = start(r, way, ["/usr/bin/env"], "{'OWN': '1'}")
    assert "OWN=1" in done.stdout and ("LD_PRELOAD=" in done.stdout) == (mode == "shunt"), done


def root_with(tmp_path, *programs):
    """A root with these programs, and what they need, in it."""
    root = tmp_path / "root"
    for program in programs:
        needs = [word for word in subprocess.check_output(["ldd", program], text=True).split() if word.startswith("/")]
        for file in [program, *needs]:
            place = root / file.lstrip("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, place)
    return root


@pytest.mark.parametrize("other", ["", "other"])
@pytest.mark.parametrize("way", WAYS)
def test_in_another_root_nothing_is_said(r, mode, way, other, tmp_path):
    """The library is not there: the dynamic linker would say so on the program's output. What the program has preloaded itself stays."""
    root = root_with(tmp_path, "/bin/sh", "/usr/bin/env")
    env = {name: value for name, value in r.environment().items() if name in ("LD_PRELOAD", "SHUNT_REPORT")} | {"OWN": "1", "PATH": "/usr/bin"}
    if other:
        shutil.copy(r.apps / "library.so", root / "library.so")
        for library in subprocess.check_output(["ldd", r.apps / "library.so"], text=True).split():
            if library.startswith("/"):
                (root / library.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(library, root / library.lstrip("/"))
        env["LD_PRELOAD"] = ":".join(filter(None, [env.get("LD_PRELOAD"), "/library.so"]))
    before = f"os.chroot({str(root)!r}); os.chdir('/')"
    done = start(r, way, ["/usr/bin/env"], repr(env), before)
    assert done.stderr == "" and done.returncode == 0, done
    assert "OWN=1" in done.stdout
    left = [line for line in done.stdout.splitlines() if line.startswith("LD_PRELOAD=")]
    assert left == (["LD_PRELOAD=/library.so"] if other else []), done


def test_a_user_who_may_not_read_it(r, mode, tmp_path):
    """The same where the library is, but not for the user that the program has become."""
    if mode != "shunt":
        pytest.skip("there is no library")
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    library = private / "libshunt.so"
    shutil.copy(r.environment()["LD_PRELOAD"], library)
    done = start(r, "exec", ["/usr/bin/env"], "dict(os.environ)", "os.setgid(65534); os.setuid(65534)", LD_PRELOAD=str(library))
    assert done.stderr == "" and "LD_PRELOAD" not in done.stdout, done
