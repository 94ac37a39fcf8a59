"""Switches one mechanism after the other off, and holds its tests to failing: a test that cannot fail shows nothing.

    tests/switched_off.py             all of them, a minute each
    tests/switched_off.py exec fork   these
    tests/switched_off.py --check     only looks whether their places are found in the working tree, in milliseconds

Each is a change to one place of the source, made in a checkout of the last commit under build/, for which the library is built anew and the
tests that it is there for are run, in mode shunt if it has no other. Those that fail are run once more with all switched on, where they
must pass. The table is in mechanisms.py. $PYTHON is one that has pytest, unless it is that of build/venv.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from mechanisms import MECHANISMS
from places import change, lost

ROOT = Path(__file__).parent.parent
CHECKOUT, TARGET = ROOT / "build/switched_off", ROOT / "target/switched_off"

# How the library is built. `fast` where it shall not take long.
PROFILE = os.environ.get("SWITCHED_OFF_PROFILE", "release")
# What is built with all switched on: a test that fails there as well has noticed nothing.
WHOLE = TARGET / "whole"
PYTHON = os.environ.get("PYTHON", ROOT / "build/venv/bin/python")


def run(*argv, **how):
    return subprocess.run([str(a) for a in argv], capture_output=True, text=True, **how)


def must(*argv, **how):
    done = run(*argv, **how)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, argv))}: status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def build(*packages):
    """Whether it compiles; if not, the compiler's words go to standard error."""
    done = run(ROOT / "scripts/cargo", "build", "-q", "--profile", PROFILE, "--locked", *packages, cwd=CHECKOUT,
               env=os.environ | {"CARGO_TARGET_DIR": str(TARGET)})
    sys.stderr.write(done.stderr if done.returncode != 0 else "")
    return done.returncode == 0


def try_tests(library, mode, *which):
    """Runs tests with a library, and the command as it is: those that failed, those that passed, and all that was said."""
    built = {"SHUNT_LIB": str(library), "SHUNT_COMMAND": str(WHOLE / "shunt")}
    done = run(PYTHON, "-m", "pytest", "-q", "-rfp", "--modes", mode, *which, cwd=CHECKOUT, env=os.environ | built)
    failed = re.findall(r"^FAILED (.+?)(?: - .*)?$", done.stdout, re.M)
    passed = re.findall(r"^PASSED (.+)$", done.stdout, re.M)
    if not failed and not passed:
        print(f"no test was run: {' '.join(map(str, which))}\n{done.stdout[-2000:]}{done.stderr}", file=sys.stderr)
    return failed, passed, done.stdout


def try_without(name):
    """The tests that fail without, say what they are to say, and pass with everything switched on."""
    mechanism = MECHANISMS[name]
    must("git", "checkout", "-q", "--", ".", cwd=CHECKOUT)
    change(CHECKOUT / "crates", mechanism)
    if not build("-p", "preload"):
        return []
    failed, _, said = try_tests(TARGET / PROFILE / "libshunt.so", mechanism.mode, "tests", "--ignore=tests/filters", "--maxfail", 3,
                                "-k", f"({mechanism.tests}) and not conformance")
    if not failed or mechanism.says not in said:
        return []
    _, passed, _ = try_tests(WHOLE / "libshunt.so", mechanism.mode, *failed)
    return [test for test in failed if test in passed]


def check(crates):
    if found := list(lost(crates, MECHANISMS)):
        sys.exit("\n".join(found))


def main():
    if sys.argv[1:] == ["--check"]:
        check(ROOT / "crates")
        return
    names = sys.argv[1:] or list(MECHANISMS)
    if unknown := set(names) - set(MECHANISMS):
        sys.exit(f"no such mechanism: {', '.join(sorted(unknown))}; there are {', '.join(MECHANISMS)}")
    if not CHECKOUT.exists():
        must("git", "worktree", "prune", cwd=ROOT)
        must("git", "worktree", "add", "-q", "--detach", CHECKOUT, cwd=ROOT)
    must("git", "checkout", "-q", "--", ".", cwd=CHECKOUT)
    must("git", "checkout", "-q", "--detach", must("git", "rev-parse", "HEAD", cwd=ROOT).strip(), cwd=CHECKOUT)
    check(CHECKOUT / "crates")
    if not build("-p", "preload", "-p", "shunt"):
        sys.exit(1)
    WHOLE.mkdir(exist_ok=True)
    for file in "libshunt.so", "shunt":
        shutil.copy2(TARGET / PROFILE / file, WHOLE)
    unnoticed = []
    for name in names:
        failed = try_without(name)
        print(f"{name:20} {MECHANISMS[name].without:80} {', '.join(failed) or 'NOBODY NOTICES'}", flush=True)
        if not failed:
            unnoticed.append(name)
    must("git", "worktree", "remove", "--force", CHECKOUT, cwd=ROOT)
    sys.exit(f"no test fails without: {', '.join(unnoticed)}" if unnoticed else 0)


if __name__ == "__main__":
    main()
