"""Takes one mend after the other out, and holds the simulator, or a test, to finding what it mended.

    tests/taken_out.py                 all of them, half a minute each
    tests/taken_out.py poll_before     these
    tests/taken_out.py --check         only looks whether their places are found in the working tree, in milliseconds

The table is in mends.py. Each is a change to one place of a copy of the working tree under build/, for which library and simulator are
built anew. `SIM_SEEDS` is how many seeds are tried of each at most (40000: two minutes). `scripts/sim.sh mends` is this program.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from mends import MENDS
from places import change, lost

ROOT = Path(__file__).parent.parent
COPY = ROOT / "build/taken_out"
SEEDS = os.environ.get("SIM_SEEDS", "40000")
# A thread of the library that goes on for ever without a step would stop the simulator.
MOST_SECONDS = 1200
# What a build needs.
PARTS = ("crates", "scripts", "Cargo.toml", "Cargo.lock")


def copy():
    """Brings the copy up to the working tree, changing only what differs: the rest is not built again."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "--", *PARTS], cwd=ROOT, check=True, capture_output=True)
    for name in listed.stdout.decode().split():
        source, target = ROOT / name, COPY / name
        if source.exists() and not (target.exists() and target.read_bytes() == source.read_bytes()):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)


TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "taken_out"
# The simulator and the library with all mends.
WHOLE = TARGET / "whole"


def simulate(*arguments, timeout=None):
    """Builds and runs the simulator of the copy; what it says."""
    ours = {"CARGO": str(ROOT / "scripts/cargo"), "CARGO_TARGET_DIR": str(TARGET), "RUSTFLAGS": "-Awarnings"}
    done = subprocess.run([COPY / "scripts/sim.sh", *arguments], env=os.environ | ours, timeout=timeout, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return done.stdout


def build_whole():
    copy()
    if "--seeds" not in (built := simulate("--help")):
        sys.exit(built)
    WHOLE.mkdir(exist_ok=True)
    for file in ("sim", "libshunt.so"):
        shutil.copy(TARGET / "sim/fast" / file, WHOLE)


def fails_anyway(seed, *where):
    """Whether a seed fails with all mends, too: it says nothing of one that is taken out."""
    return subprocess.run([WHOLE / "sim", "--seeds", f"{seed}-{seed}", *where], stdout=subprocess.DEVNULL).returncode != 0


def unit_test(mend):
    """What the mend's test says in the copy as it is."""
    crate = mend.file.split("/")[0]
    targets = ["--lib", *(["--test", "scripted"] if (COPY / "crates" / crate / "tests/scripted").is_dir() else [])]
    done = subprocess.run([ROOT / "scripts/cargo", "test", "--profile", "fast", "--locked", "-p", crate, *targets, mend.test], cwd=COPY, text=True,
                          env=os.environ | {"CARGO_TARGET_DIR": str(TARGET), "RUSTFLAGS": "-Awarnings"}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return done.stdout


def fails_without(mend):
    """How the mend's test fails, which passes with it."""
    without = unit_test(mend)
    if "test result:" not in without:
        return f"DOES NOT COMPILE\n{without}"
    copy()
    if "1 passed" in unit_test(mend) and "0 passed; 1 failed" in without:
        return f"test {mend.test} fails"
    return None


def try_without(name):
    """The seed or the test that fails without, and how."""
    copy()
    change(COPY / "crates", MENDS[name])
    if MENDS[name].test:
        return fails_without(MENDS[name])
    built = simulate("--help")
    if "--seeds" not in built:
        return f"DOES NOT COMPILE\n{built}"
    began = time.monotonic()
    where = [option for option in ("hosts", "spaces") if getattr(MENDS[name], option)]
    where = [f"--{option}" for option in where]
    first = 1
    while True:
        said = simulate("--seeds", f"{first}-{SEEDS}", "--jobs", "1", *where, timeout=MOST_SECONDS)
        found = re.search(r"^seed +(\d+) *: (.*)$", said, re.M)
        if not found or not fails_anyway(found[1], *where):
            return found and f"{time.monotonic() - began:3.0f} s, seed {found[1]}: {found[2]}"
        print(f"{name:20} seed {found[1]} fails with all mends, too: {found[2]}", flush=True)
        first = int(found[1]) + 1


def main():
    if found := list(lost(ROOT / "crates", MENDS)):
        sys.exit("\n".join(found))
    if sys.argv[1:] == ["--check"]:
        return
    names = sys.argv[1:] or list(MENDS)
    if unknown := set(names) - set(MENDS):
        sys.exit(f"no such mend: {', '.join(sorted(unknown))}; there are {', '.join(MENDS)}")
    unnoticed = []
    build_whole()
    for name in names:
        found = try_without(name)
        print(f"{name:20} {found or 'NOTHING FAILS'}", flush=True)
        if not found or "COMPILE" in found:
            unnoticed.append(name)
    copy()
    sys.exit(f"nothing fails without: {', '.join(unnoticed)}" if unnoticed else 0)


if __name__ == "__main__":
    main()
