"""Every example of the programs in tests/vipl, which link with libvipl.so as any VIPL program does: two processes on one host. The examples
check themselves; here they are found (by reading the tables at the end of the C files) and run. What they leave behind is looked
for: processes, and files of shared memory.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent
PROGRAMS = ROOT / "build" / "vipl"
RELEASE = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release"
ROW = re.compile(r'^    \{"(\w+)", \w+, \w+, ([A-Z0-9_| ]+)\},', re.M)


@pytest.fixture(scope="session", autouse=True)
def built():
    """The programs, and the library if it is not there yet."""
    if not (RELEASE / "libvipl.so").exists():
        subprocess.run([ROOT / "scripts/cargo", "build", "--release", "--locked", "-p", "vipl"], cwd=ROOT, check=True, timeout=600)
    subprocess.run(["make", "-s", "-C", HERE / "vipl", f"OUT={PROGRAMS}", f"LIB={RELEASE}"], check=True, timeout=300)


def examples():
    for source in sorted((HERE / "vipl").glob("*.c")):
        for name, _ in ROW.findall(source.read_text()):
            yield pytest.param(source.stem, name, id=f"{source.stem}-{name}")


def run(argv, **how):
    result = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, **how)
    assert result.returncode == 0, f"{argv}: status {result.returncode}\n{result.stdout}{result.stderr}"
    return result


@pytest.mark.parametrize("program, name", list(examples()))
def test_example(program, name):
    run([PROGRAMS / program, name])


@pytest.mark.parametrize("compiler, standard", [
    ("gcc", "gnu89"), ("gcc", "c11"), ("clang", "gnu89"), ("clang", "c11"), ("g++", "c++17"), ("clang++", "c++17"),
])
def test_header(compiler, standard, tmp_path):
    """C89 with anonymous unions, C11, C++17, both spellings of a descriptor, no warning."""
    assert shutil.which(compiler), f"{compiler} is not installed"
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
