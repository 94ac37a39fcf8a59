"""Guests: virtual machines that boot Debian's kernel with an initramfs of our making, so that there is a second kernel to talk to.

    kernel = qemu.kernel()                           Debian's kernel package, unpacked in build/qemu, not installed
    image = qemu.initramfs("tipc", kernel, [program, ...])
    guest = qemu.Guest(runner, net, "left", kernel, image, [qemu.nic("02:00:00:00:00:01", 7001, 7002)])
    guest.run("ip link set eth0 up")                 a script, to its end; fails the test when the script fails; returns what it printed
    guest.until("ping -c 1 10.0.0.2", 20)            again and again until it succeeds

QEMU translates (TCG), as nothing says that the machine has KVM: a boot takes some three seconds of one processor. Scripts go in and results come
out over a serial line (tests/qemu/init); the other one has the kernel's messages, which are shown when something fails. Network interfaces
of guests are UDP sockets (`-netdev dgram`), raw frames in datagrams, inside a network namespace of the test's.
"""

import base64
import lzma
import os
import re
import select
import shutil
import socket
import struct
import subprocess
import tempfile
import time
from pathlib import Path

from . import modes, system
from .runner import PATIENCE

HERE = modes.ROOT / "tests/qemu"
BUILD = modes.ROOT / "build/qemu"
# What Debian calls the kernel that it would install, and what else may be had in the same way.
KERNEL_PACKAGE = os.environ.get("QEMU_KERNEL_PACKAGE", "linux-image-amd64")
# With what these need, which the modules themselves say.
MODULES = ["virtio_pci", "virtio_net", "e1000", "tun", "tipc", "bonding", "8021q", "bridge", "veth", "dummy"]
TOOLS = ["ip", "tipc", "bridge", "ping"]
# Seconds for a boot; three are usual.
BOOT = 60
# What a kernel says that no test may pass over.
TROUBLE = re.compile(r"^.*(?:BUG:|Oops|general protection|Kernel panic|WARNING: CPU|blocked for more than|Out of memory).*$", re.M)
# What Guest.trouble explains.
KNOWN = re.compile(r"^[^\n]*WARNING: CPU: \d+ PID: \d+ at lib/refcount\.c:\d+ (?:(?!end trace)[^\n]*\n)*?"
                   r"[^\n]*(?:sock_wfree|sock_alloc_send_pskb)\+(?:(?!end trace)[^\n]*\n)*?"
                   r"[^\n]*(?:\[tipc\]|\[tun\])(?:(?!end trace)[^\n]*\n)*[^\n]*end trace", re.M)
# How tests/qemu/init ends an answer.
END = re.compile(rb"\n\x04(\d+)\n\Z")


# ---- what is booted ----


class Kernel:
    """An unpacked kernel package: its uncompressed kernel, and its modules by name."""

    def __init__(self, folder):
        self.vmlinux = folder / "vmlinux"
        (self.modules_folder,) = [path for path in [*folder.glob("lib/modules/*"), *folder.glob("usr/lib/modules/*")] if path.is_dir()]
        self.version = self.modules_folder.name
        self.modules = {path.name.split(".ko")[0].replace("-", "_"): path for path in self.modules_folder.rglob("*.ko*")}


def kernel():
    """Debian's kernel, fetched once into build/qemu. apt finds and checks the package; nothing is installed."""
    folder = BUILD / "kernel"
    with system.building(BUILD):
        if not folder.exists():
            fetched = BUILD / "fetched"
            shutil.rmtree(fetched, ignore_errors=True)
            fetched.mkdir(parents=True)
            fetch_package(fetched)
            (boot,) = fetched.glob("boot/vmlinuz-*")
            (fetched / "vmlinux").write_bytes(uncompressed(boot.read_bytes()))
            fetched.rename(folder)
    return Kernel(folder)


def fetch_package(folder):
    """The package on which KERNEL_PACKAGE depends, unpacked."""
    shown = output(["apt-cache", "depends", "--important", KERNEL_PACKAGE])
    found = re.search(r"Depends: (linux-image-\S+)", shown)
    assert found, f"apt knows no kernel package {KERNEL_PACKAGE} that depends on an image (QEMU_KERNEL_PACKAGE may name one):\n{shown}"
    # The lists on this machine may be older than the archive, which has only the newest.
    download = [*system.outside(), "apt-get", "-q", "-o", "APT::Sandbox::User=root", "download", found[1]]
    if subprocess.run(download, cwd=folder, capture_output=True).returncode != 0:
        output([*system.outside(), "apt-get", "-q", "-o", "DPkg::Lock::Timeout=300", "update"])
        output(download, cwd=folder)
    (package,) = folder.glob("*.deb")
    output(["dpkg-deb", "-x", package, folder])
    package.unlink()


def uncompressed(image):
    """The kernel inside a bzImage: QEMU boots it three seconds sooner than the kernel unpacks itself under translation."""
    sectors = image[0x1F1] or 4
    offset, length = struct.unpack_from("<II", image, 0x248)
    payload = image[(sectors + 1) * 512 + offset:][:length]
    if payload.startswith(b"\xfd7zXZ"):
        return lzma.LZMADecompressor().decompress(payload)
    if payload.startswith(b"\x28\xb5\x2f\xfd"):
        return subprocess.run(["zstd", "-dc"], input=payload, capture_output=True, check=True).stdout
    raise AssertionError(f"a kernel that is compressed in a way not known here: it starts with {payload[:6].hex()}")


def output(argv, **how):
    result = subprocess.run([str(word) for word in argv], stdin=subprocess.DEVNULL, capture_output=True, text=True, **how)
    assert result.returncode == 0, f"{' '.join(map(str, argv))}: status {result.returncode}\n{result.stdout}{result.stderr}"
    return result.stdout


# ---- the initramfs ----


def initramfs(name, kernel, programs=(), plugins=(), files=(), modules=()):
    """An image with busybox, TOOLS, MODULES and `programs`, with the libraries that they load; also `plugins`, libraries that programs open at run time, `files`,
    both where they are here (or, as pairs, elsewhere), and more kernel modules. Not compressed: that would only cost time."""
    archive = Archive()
    archive.file("init", HERE / "init", 0o755)
    busybox = program("busybox")
    assert not libraries(busybox), "the busybox here is not the static one: install busybox-static"
    archive.file("bin/busybox", busybox, 0o755)
    # Busybox's own shell would prefer busybox's own ip and ping.
    archive.file("bin/sh", program("dash"), 0o755)
    for path in [*map(program, TOOLS), *map(Path, programs)]:
        archive.data(f"usr/bin/{path.name}", stripped(path), 0o755)
    for path in [program("dash"), *map(program, TOOLS), *map(Path, programs)]:
        for library in libraries(path):
            archive.file(str(library).lstrip("/"), library, 0o755)
    for plugin, place in map(placed, plugins):
        archive.file(place, plugin, 0o755)
        for library in libraries(plugin):
            archive.file(str(library).lstrip("/"), library, 0o755)
    for path, place in map(placed, files):
        archive.file(place, path, 0o644)
    for applet in output([busybox, "--list"]).split():
        archive.link(f"bin/{applet}", "busybox")
    add_modules(archive, kernel, [*MODULES, *modules])
    BUILD.mkdir(parents=True, exist_ok=True)
    image = BUILD / f"{name}.cpio"
    with system.building(BUILD):
        fresh = image.with_suffix(f".{os.getpid()}")
        fresh.write_bytes(archive.finished())
        fresh.rename(image)
    return image


def placed(path):
    """A file, and where it is in a guest."""
    here, there = path if isinstance(path, tuple) else (path, path)
    return Path(here), str(there).lstrip("/")


def stripped(path):
    """A program without what only a debugger reads: guests have little memory, which an image takes twice."""
    BUILD.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=BUILD) as small:
        output(["strip", "-o", small.name, path])
        return Path(small.name).read_bytes()


def program(name):
    return Path(system.program(name))


def libraries(path):
    """What the dynamic linker loads for a program, itself included; nothing for a static one."""
    listed = subprocess.run(["ldd", str(path)], capture_output=True, text=True)
    assert "not found" not in listed.stdout, f"{path} lacks a library:\n{listed.stdout}"
    return [Path(found) for found in re.findall(r"(?:=> |^\t)(/\S+) \(0x", listed.stdout, re.M)]


def add_modules(archive, kernel, modules):
    """These modules and what they need, and the lists by which modprobe finds them, made from what the modules say about themselves."""
    needs, aliases, wanted = {}, [], list(modules)
    while wanted:
        name = wanted.pop()
        if name in needs:
            continue
        assert name in kernel.modules, f"Linux {kernel.version} has no module {name}"
        path = kernel.modules[name]
        content = lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()
        said = re.findall(rb"(?<=\0)(depends|alias)=([^\0]*)", content)
        needs[name] = [word for key, value in said if key == b"depends" for word in value.decode().replace("-", "_").split(",") if word]
        aliases += [f"alias {value.decode()} {name}" for key, value in said if key == b"alias"]
        archive.data(f"lib/modules/{kernel.version}/{name}.ko", content, 0o644)
        wanted += needs[name]
    lines = [f"{name}.ko: {' '.join(f'{need}.ko' for need in all_needs(name, needs))}".rstrip() for name in needs]
    archive.data(f"lib/modules/{kernel.version}/modules.dep", ("\n".join(lines) + "\n").encode(), 0o644)
    archive.data(f"lib/modules/{kernel.version}/modules.alias", ("\n".join(aliases) + "\n").encode(), 0o644)


def all_needs(name, needs):
    """What must be there before a module, as in modules.dep: each stands before what it needs itself."""
    found = []
    for need in needs[name]:
        found += [need, *all_needs(need, needs)]
    return [need for at, need in enumerate(found) if need not in found[at + 1:]]


class Archive:
    """A cpio archive of the kind that the kernel unpacks at its start ("newc")."""

    def __init__(self):
        self.parts, self.names = [], set()

    def file(self, name, path, mode):
        self.data(name, Path(path).read_bytes(), mode)

    def data(self, name, content, mode):
        self.entry(name, content, 0o100000 | mode)

    def link(self, name, target):
        self.entry(name, target.encode(), 0o120777)

    def entry(self, name, content, mode):
        if name in self.names:
            return
        for parent in list(Path(name).parents)[-2::-1]:
            if str(parent) not in self.names:
                self.entry(str(parent), b"", 0o040755)
        self.names.add(name)
        self.append(name, content, mode)

    def append(self, name, content, mode):
        raw = name.encode() + b"\0"
        fields = [len(self.names), mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(raw), 0]
        head = b"070701" + b"".join(b"%08X" % field for field in fields) + raw
        self.parts += [head, bytes(-len(head) % 4), content, bytes(-len(content) % 4)]

    def finished(self):
        self.append("TRAILER!!!", b"", 0)
        return b"".join(self.parts)


# ---- running ----


class Net:
    """A network namespace with loopback only, which lives as long as the process that holds it."""

    def __init__(self, runner, name):
        self.runner, self.name = runner, name
        self.holder = runner.spawn(["unshare", "--net", "sleep", "infinity"], name=f"net-{name}")
        self.path = f"/proc/{self.holder.pid}/ns/net"
        end = time.monotonic() + 30 * PATIENCE
        while not self.mine():
            assert self.holder.alive(), f"no network namespace could be made (these tests want root):\n{self.holder.output()}"
            assert time.monotonic() < end, "unshare did not make a network namespace"
            time.sleep(0.01)
        self.run(["ip", "link", "set", "lo", "up"])

    def mine(self):
        # Between unshare and sleep the process is in it already, but looks the same from here.
        return os.stat(self.path).st_ino != os.stat("/proc/self/ns/net").st_ino

    def inside(self, argv):
        return ["nsenter", f"--net={self.path}", *argv]

    def run(self, argv, **how):
        return self.runner.run(self.inside(argv), **how)

    def spawn(self, argv, **how):
        return self.runner.spawn(self.inside(argv), name=how.pop("name", Path(str(argv[0])).name), **how)


def nic(mac, port, peer, mtu=1500, device="virtio-net-pci"):
    """What QEMU is told of one network interface: raw frames from UDP port `port` of loopback to port `peer`."""
    end = f"local.type=inet,local.host=127.0.0.1,local.port={port},remote.type=inet,remote.host=127.0.0.1,remote.port={peer}"
    more = f",host_mtu={mtu}" if mtu != 1500 else ""
    return ["-netdev", f"dgram,id=n{port},{end}", "-device", f"{device},netdev=n{port},mac={mac}{more},romfile="]


class Guest:
    """A running guest."""

    def __init__(self, runner, net, name, kernel, image, devices, memory=256):
        self.name, self.broken = name, False
        self.console = runner.tmp / f"{name}.console"
        channel = runner.tmp / f"{name}.serial"
        self.monitor = runner.tmp / f"{name}.monitor"
        argv = [program("qemu-system-x86_64"), "-machine", "pc", "-name", name, "-accel", "tcg", "-cpu", "max", "-m", memory, "-nodefaults", "-no-reboot",
                "-nographic", "-kernel", kernel.vmlinux, "-initrd", image,
                "-append", "console=ttyS0 quiet panic=-1 oops=panic tsc=reliable random.trust_cpu=on net.ifnames=0",
                "-serial", f"file:{self.console}", "-serial", f"unix:{channel},server=on,wait=off",
                "-monitor", f"unix:{self.monitor},server=on,wait=off", *sum(devices, [])]
        self.program = net.spawn([str(word) for word in argv], name=f"guest-{name}")
        self.serial, self.received = None, b""
        self.boot_end = time.monotonic() + BOOT * PATIENCE
        # At once: what a serial line carries while nobody is connected is lost.
        while self.serial is None:
            line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                line.connect(str(channel))
                self.serial = line
            except OSError:
                line.close()
                self.check_running(self.boot_end, "QEMU did not open its serial line")
                time.sleep(0.01)

    def wait_booted(self):
        self.read_until(re.compile(rb"ready\n\Z"), self.boot_end, f"the guest did not boot within {BOOT * PATIENCE} s")
        return self

    def run(self, script, seconds=30, status=0):
        """Runs a script to its end, and returns what it printed. status: the one wanted, None for any, and then (status, text)."""
        self.serial.sendall(base64.b64encode(script.encode()) + b"\n")
        found = self.read_until(END, time.monotonic() + seconds * PATIENCE, f"this did not end within {seconds * PATIENCE} s:\n{script}")
        text, ended = found[0].decode(errors="replace").removesuffix("\n"), int(found[1][1])
        if status is None:
            return ended, text
        assert ended == status, f"{self.name}: status {ended}, wanted {status}:\n{script}\n{text}{self.tail()}"
        return text

    def until(self, script, seconds=30, what=None):
        """Runs a script until it succeeds, and returns what it printed then."""
        end = time.monotonic() + seconds * PATIENCE
        while True:
            status, text = self.run(script, seconds, status=None)
            if status == 0:
                return text
            assert time.monotonic() < end, f"{self.name}: not within {seconds * PATIENCE} s: {what or script}\n{text}{self.tail()}"
            time.sleep(0.05)

    def cable(self, port, plugged):
        """Pulls the cable of the interface with this UDP port, or puts it back; the guest's kernel notices, as it would."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
            line.settimeout(30 * PATIENCE)
            line.connect(str(self.monitor))
            answers = line.makefile("rb")
            line.sendall(f"set_link n{port} {'on' if plugged else 'off'}\ninfo name\n".encode())
            said = b""
            while not said.endswith(f"{self.name}\r\n".encode()):
                more = answers.readline()
                assert more and b"not found" not in more, f"{self.name} has no interface with port {port}: {said + more}"
                said += more

    def read_until(self, wanted, end, what):
        """What came before `wanted`, and its match."""
        while not (match := wanted.search(self.received)):
            self.check_running(end, what)
            if select.select([self.serial], [], [], 0.2)[0]:
                self.received += self.serial.recv(65536)
        text, self.received = self.received[:match.start()], b""
        return text, match

    def check_running(self, end, what):
        if not self.program.alive() or time.monotonic() > end:
            self.broken = True
            ended = "" if self.program.alive() else f" (QEMU ended)\n{self.program.output()}"
            raise AssertionError(f"{self.name}: {what}{ended}\n{self.received[-2000:].decode(errors='replace')}\n{self.tail()}")

    def said(self):
        """What the kernel said."""
        return self.console.read_bytes().decode(errors="replace").replace("\r", "") if self.console.exists() else ""

    def tail(self, most=3000):
        return f"--- console of {self.name}\n{self.said()[-most:]}"

    def trouble(self):
        """Lines of the console that mean that the guest's kernel is not well. Not among them: TIPC counts the parts of a message into their first
        one, for which the TAP device's socket then is given back more than it was asked for (tipc_buf_append does not orphan, Linux 6.1). Any
        TAP device has that from the first message in parts, whoever writes to it."""
        said = KNOWN.sub("", self.said())
        return [line.strip() for line in TROUBLE.findall(said)]

    def counters(self, interface):
        """{rx_packets, rx_bytes, tx_packets, tx_bytes, ...} of an interface, as the guest's kernel counts."""
        text = self.run(f"cd /sys/class/net/{interface}/statistics && grep '' *")
        return {name: int(value) for name, value in (line.split(":") for line in text.split())}

    def reset(self):
        """Makes the guest as it was after its boot: no process, no interface of a test's, no TIPC, cables and addresses as they were."""
        self.run("""
            kill -9 -1
            if [ -d /sys/module/tipc ]; then
                tipc bearer list | while read -r bearer; do
                    case $bearer in eth:*) tipc bearer disable media eth device ${bearer#eth:} ;; esac
                done
            fi
            for path in /sys/class/net/*; do
                name=${path##*/}
                case $name in
                lo | bonding_masters) ;;
                eth*) ip link set $name nomaster down; ip addr flush dev $name; ip link set $name mtu 1500 ;;
                *) ip link del $name 2>/dev/null || : ;;
                esac
            done
            rm -rf /srv/* /tmp/*.log
        """)
        self.until("! grep -q '^tipc ' /proc/modules || rmmod tipc", 10, "TIPC can be unloaded")
        left = self.run("cd /sys/class/net && ls -d * | grep -v -e ^eth -e ^lo$ -e bonding_masters; ps -o pid,args | grep -v ' \\['", status=None)[1]
        unwanted = [line for line in left.splitlines() if line.strip() and not re.search(r"PID|/init|/tmp/script|grep|ps -o", line)]
        assert not unwanted, f"{self.name}: left behind: {unwanted}"

    def stop(self):
        """Pulls the plug: there is nothing in a guest that would mind."""
        if self.serial:
            self.serial.close()
        self.program.kill()
