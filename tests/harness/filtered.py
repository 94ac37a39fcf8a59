"""Runs a command under a filter of system calls (seccomp) as systemd installs one for `SystemCallFilter=@system-service`, only harder: a call that
is not on the list kills the process, with SIGSYS, at once. What the tests themselves need beside it (networks and mounts of their own, rings, new roots) is let through as
well; the library is built so that it cannot make these (crates/fabric/src/sys/calls.rs).

    python filtered.py PROGRAM ARGUMENT...
"""

import ctypes
import os
import platform
import re
import struct
import sys
from pathlib import Path

SERVICE = Path(__file__).parents[2] / "crates/fabric/src/sys/system-service.txt"
TESTS = """mount umount2 pivot_root chroot setns sethostname io_uring_setup io_uring_enter io_uring_register ptrace bpf reboot
    process_madvise uname arch_prctl clone3 set_robust_list rseq get_robust_list membarrier""".split()

LOAD_NUMBER, EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, KILL = 0x7fff0000, 0x80000000


def numbers():
    header = {"x86_64": "asm/unistd_64.h", "aarch64": "asm-generic/unistd.h"}[platform.machine()]
    for root in ("/usr/include/x86_64-linux-gnu", "/usr/include"):
        if (file := Path(root) / header).exists():
            return {name: int(number) for name, number in re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", file.read_text())}
    raise SystemExit(f"{header} is not there (linux-libc-dev)")


def program(allowed):
    code = [struct.pack("HBBI", LOAD_NUMBER, 0, 0, 0)]
    for number in allowed:
        code.append(struct.pack("HBBI", EQUAL, 0, 1, number))
        code.append(struct.pack("HBBI", RETURN, 0, 0, ALLOW))
    code.append(struct.pack("HBBI", RETURN, 0, 0, KILL))
    return b"".join(code), len(code)


def lock_in():
    known = numbers()
    names = [*SERVICE.read_text().split(), *TESTS]
    code, length = program(sorted({known[name] for name in names if name in known}))
    libc = ctypes.CDLL(None, use_errno=True)
    text = ctypes.create_string_buffer(code)
    fprog = struct.pack("HxxxxxxP", length, ctypes.addressof(text))
    # Not PR_SET_NO_NEW_PRIVS: setuid programs are part of what is tested. That takes root.
    if libc.prctl(22, 2, fprog, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "seccomp (as root?)")


if __name__ == "__main__":
    lock_in()
    os.execvp(sys.argv[1], sys.argv[1:])
