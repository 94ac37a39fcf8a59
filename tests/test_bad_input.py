"""What must not stop a program: no room in /dev/shm, none at all, few descriptors, memfd_create refused, a damaged, foreign or
read-only board, programs that cannot be accelerated. Each time the program runs to its end by TCP with the right output.

The conversation is `echo one_way` and `echo sizes_v4` of tests/apps: it checks every byte itself.
"""

import os
import random
import struct
import subprocess

import pytest

from harness import modes, system

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="mounts need root")


def talk(r, before=(), **how):
    """A conversation that moves some megabytes and checks each byte; `before` is put in front of the command line."""
    for example in ("sizes_v4", "one_way"):
        r.run([*before, r.apps / "echo", example], **how)


def in_new_mounts(*commands):
    """The start of a command line that runs shell commands in a mount namespace of its own before the program."""
    return ["unshare", "-m", "--propagation", "private", "sh", "-ec", "; ".join([*commands, 'exec env $PRELOAD "$@"']), "sh"]


def preload_later(r):
    """Environment in which only the last program of a chain has the library: unshare and sh stay plain."""
    env = r.environment()
    library = env.get("LD_PRELOAD")
    return {"LD_PRELOAD": "", "PRELOAD": f"LD_PRELOAD={library}" if library else "PRELOAD=none"}


# ---- /dev/shm ----


@root_only
@pytest.mark.parametrize("how", ["full", "read-only", "absent", "unwritable"])
def test_no_room_in_shm(r, how):
    commands = {
        "full": ["mount -t tmpfs -o size=4k tmpfs /dev/shm", "cat /dev/zero > /dev/shm/filler 2>/dev/null || true"],
        "read-only": ["mount -t tmpfs -o ro tmpfs /dev/shm"],
        "absent": ["mount -t tmpfs tmpfs /dev", "mkdir /dev/shm.not", "mknod /dev/null c 1 3"],
        "unwritable": ["mount -t tmpfs -o mode=0555 tmpfs /dev/shm"],
    }[how]
    talk(r, in_new_mounts(*commands), env=preload_later(r))
    if how in ("full", "read-only", "absent"):
        r.not_accelerated()


@root_only
def test_full_shm_while_running(r):
    """The board is there and good; all the rest of /dev/shm is taken."""
    commands = ["mount -t tmpfs -o size=1m tmpfs /dev/shm"]
    talk(r, in_new_mounts(*commands, f"{r.apps}/echo sizes_v4", "cat /dev/zero > /dev/shm/filler 2>/dev/null || true"), env=preload_later(r))


# ---- the board ----


@pytest.fixture
def board(r):
    """Makes a good board by a conversation, hands out its path, and takes the board away afterwards."""
    system.BOARD.unlink(missing_ok=True)
    talk(r)
    if r.mode == "shunt":
        assert system.BOARD.exists(), "an accelerated conversation leaves no board: where is it?"
    elif not system.BOARD.exists():
        system.BOARD.write_bytes(b"")
    r.new_report()
    yield system.BOARD
    if system.BOARD.is_dir() and not system.BOARD.is_symlink():
        system.BOARD.rmdir()
    else:
        system.BOARD.unlink(missing_ok=True)


def damage_random(path):
    path.write_bytes(random.Random(1).randbytes(max(path.stat().st_size, 65536)))


def damage_some(path):
    data = bytearray(path.read_bytes() or bytes(65536))
    dice = random.Random(2)
    for _ in range(len(data) // 50):
        data[dice.randrange(len(data))] = dice.randrange(256)
    path.write_bytes(data)


def damage_entries(path):
    """The header is good, all else is random."""
    data = path.read_bytes() or bytes(65536)
    path.write_bytes(data[:4096] + random.Random(3).randbytes(len(data[4096:])))


DAMAGES = {
    "random bytes": damage_random,
    "some bytes": damage_some,
    "entries": damage_entries,
    "all ones": lambda path: path.write_bytes(b"\xff" * max(path.stat().st_size, 65536)),
    "all zero": lambda path: path.write_bytes(bytes(max(path.stat().st_size, 65536))),
    "foreign magic": lambda path: path.write_bytes(b"NOTSHUNT" + path.read_bytes()[8:]),
    "version": lambda path: path.write_bytes(path.read_bytes()[:8] + struct.pack("<Q", 2**40 + 7) + path.read_bytes()[16:]),
    "empty": lambda path: path.write_bytes(b""),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:5000]),
    "huge": lambda path: os.truncate(path, 1 << 40),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_board(r, board, damage):
    DAMAGES[damage](board)
    talk(r)


@pytest.mark.parametrize("damage", ["random bytes", "truncated", "empty"])
def test_board_damaged_while_running(r, board, damage):
    """A conversation of many short-lived connections goes on while the board is damaged again and again."""
    talker = r.spawn([r.apps / "echo", "turnover"])
    while talker.alive():
        DAMAGES[damage](board)
    assert talker.wait() == 0, talker.output()


@pytest.mark.parametrize("kind", ["directory", "fifo", "symlink to nothing", "symlink to itself", "symlink to a file"])
def test_board_is_no_file(r, board, kind):
    """Opening it must not hang, create what it should not, or follow a link that somebody laid."""
    board.unlink(missing_ok=True)
    precious = r.tmp / "precious"
    precious.write_bytes(b"precious" * 10000)
    if kind == "directory":
        board.mkdir()
    elif kind == "fifo":
        os.mkfifo(board)
    else:
        board.symlink_to({"symlink to nothing": r.tmp / "nothing", "symlink to itself": board, "symlink to a file": precious}[kind])
    talk(r)
    assert precious.read_bytes() == b"precious" * 10000
    assert not (r.tmp / "nothing").exists()


@root_only
def test_board_not_writable(r, board):
    """Run by a user who may not write the board."""
    board.chmod(0o444)
    talk(r, user="nobody")
    board.chmod(0o000)
    talk(r, user="nobody")


@root_only
def test_board_of_another_user(r):
    """The board was made by nobody; root uses it too, or does not, but works."""
    system.BOARD.unlink(missing_ok=True)
    talk(r, user="nobody")
    talk(r)
    system.BOARD.unlink(missing_ok=True)


def test_board_lets_in_late(r):
    """Another user is just making the board, and has not let others in yet."""
    refused = ["-P", system.BOARD, "-e", "inject=openat:error=EACCES:when=1..3"]
    r.run(["strace", "-f", "-qq", "-o", r.tmp / "calls", *refused, r.apps / "echo", "sizes_v4"], timeout=60)
    assert r.mode != "shunt" or "(INJECTED)" in (r.tmp / "calls").read_text()
    r.accelerated()


# ---- what the kernel refuses ----


def test_memfd_refused(r):
    talk(r, [r.apps / "no_memfd"])
    r.not_accelerated()


@pytest.mark.parametrize("limit", [4, 6, 8, 12, 16, 20, 30, 64])
def test_few_descriptors(r, limit):
    """The programs of tests/apps put a descriptor on number 900, so here another one talks: Python to its own child, with `limit`
    descriptors in all."""
    script = r.tmp / "few.py"
    script.write_text(FEW)
    if limit >= 8:
        assert r.run(["python3", "-S", "-E", script, limit]).text == "right\n"
    else:
        r.run(["python3", "-S", "-E", script, limit], status=None)  # Python itself may not manage: only, it must end


FEW = """
import _socket, os, resource, sys
limit = int(sys.argv[1])
listener = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
listener.bind(("127.0.0.1", 0))
listener.listen(5)
address = listener.getsockname()
child = os.fork()
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
if child:
    number, _ = listener._accept()
    connection = _socket.socket(fileno=number)
else:
    connection = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
    connection.connect(address)
def receive(n):
    data = b""
    while len(data) < n:
        part = connection.recv(n - len(data))
        assert part
        data += part
    return data
for i in range(1000):
    data = bytes([i % 251]) * (1 + i * 13 % 5000)
    if child:
        assert receive(len(data)) == data
        connection.sendall(data)
    else:
        connection.sendall(data)
        assert receive(len(data)) == data
if child:
    assert connection.recv(1) == b""
    assert os.waitpid(child, 0)[1] == 0
    os.write(1, b"right\\n")
else:
    connection.close()
    os._exit(0)
"""


@root_only
def test_small_memory_lock_and_file_size(r):
    """RLIMIT_MEMLOCK 0 and RLIMIT_FSIZE tiny: growing a memfd beyond it would raise SIGXFSZ in the program."""
    talk(r, ["prlimit", "--memlock=0", "--fsize=1000000000", "--"])
    r.run(["prlimit", "--fsize=8192", "--", r.apps / "echo", "sizes_v4"])


@pytest.mark.parametrize("megabytes", (20, 60, 100))
def test_address_space(r, megabytes):
    """Too little address space for large rings, or for our tables: still right, and what we take leaves the program room."""
    talk(r, ["prlimit", f"--as={megabytes}000000", "--"])


# ---- programs that cannot be accelerated ----


def test_static_program(r):
    text = b"static " * 10000
    assert r.run([r.apps / "static_cat"], input=text).stdout == text


def test_library_named_twice(r, mode):
    if mode == "plain":
        return talk(r)
    library = modes.library()
    talk(r, env={"LD_PRELOAD": f"{library} {library}"})


def test_unknown_option_value(r):
    """A value that makes no sense is reported (where reports go), never printed into the program's output, and changes nothing else."""
    result = r.run(["echo", "hello"], env={"SHUNT_PATH": "nonsense"} if r.mode == "shunt" else {})
    assert (result.stdout, result.stderr) == (b"hello\n", b"")


def test_not_a_byte_of_output(r):
    result = r.run([r.apps / "echo", "small_messages"])
    assert (result.stdout, result.stderr) == (b"", b"")


def test_peer_without_the_library(r, mode):
    """One end under Shunt, the other not: TCP, both ways round."""
    port = r.free_port()
    server = [modes.ROOT / "tests/apps/servers.py", "threading", port]
    r.server(["python3", *server], port)
    outputs = [r.run(["python3", server[0], "ask-blocking", port], plain=True).text]
    port = r.free_port()
    r.server(["python3", server[0], "threading", port], port, plain=True)
    outputs.append(r.run(["python3", server[0], "ask-blocking", port]).text)
    assert outputs[0] == outputs[1]
    assert r.report.promoted == 0


# ---- the command `shunt` ----


@pytest.fixture
def shunt(r, mode):
    """The command's path. In mode plain there is nothing to test: the program is run by itself."""
    if mode == "plain":
        return lambda *argv, **how: r.run(argv, **how) if argv[0] != "--require" else r.run(argv[1:], **how)
    command = modes.command()
    assert command, "the command `shunt` is not there: build it (cargo build --release), or set SHUNT_COMMAND to it"
    env = {"LD_PRELOAD": ""} | ({"SHUNT_PATH": "tcp"} if mode == "tcp" else {})

    def run(*argv, **how):
        flags = ["--require"] if argv[0] == "--require" else []
        return r.run([command, "run", *flags, "--", *argv[len(flags):]], env=env, **how)

    return run


def test_command_runs(r, shunt):
    shunt(r.apps / "echo", "small_messages")
    result = shunt("sh", "-c", "echo out; echo err >&2; exit 7", status=7)
    assert (result.stdout, result.stderr) == (b"out\n", b"err\n")


def test_command_not_found(shunt, mode):
    if mode == "plain":
        with pytest.raises(FileNotFoundError):
            shunt("no-such-program-here")
        return
    result = shunt("no-such-program-here", status=127)
    assert b"no-such-program-here" in result.stderr


def test_command_not_executable(r, shunt, mode):
    file = r.tmp / "text"
    file.write_text("no program\n")
    if mode == "plain":
        with pytest.raises(PermissionError):
            shunt(file)
        return
    assert b"text" in shunt(file, status=126).stderr


def test_command_static(r, shunt, mode):
    """Runs plain, with a message; with --require it does not run."""
    result = shunt(r.apps / "static_cat", input="hello\n")
    assert result.stdout == b"hello\n"
    if mode == "shunt":
        assert b"static" in result.stderr
        refused = shunt("--require", r.apps / "static_cat", input="hello\n", status=None)
        assert refused.status != 0 and b"static" in refused.stderr


@root_only
def test_command_setuid(r, shunt, mode):
    """The dynamic linker ignores LD_PRELOAD for setuid programs: a message, and the program runs plain. (As root the bit gives nothing, and
    the linker does not mind, so the program is another user's.)"""
    system_echo = r.tmp / "setuid-echo"
    subprocess.run(["cp", "/bin/echo", system_echo], check=True)
    os.chown(system_echo, 65534, 65534)
    system_echo.chmod(0o4755)
    result = shunt(system_echo, "hello")
    assert result.stdout == b"hello\n"
    if mode == "shunt":
        assert b"setuid" in result.stderr
        refused = shunt("--require", system_echo, "hello", status=None)
        assert refused.status != 0 and b"setuid" in refused.stderr


def test_command_require(r, shunt, mode):
    """--require: a program whose connections were promoted ends as it would; one that promoted nothing makes the command fail."""
    shunt("--require", r.apps / "echo", "small_messages", status=0 if mode != "tcp" else None)
    if mode != "plain":
        result = shunt("--require", "true", status=None)
        assert result.status != 0 and result.stderr
