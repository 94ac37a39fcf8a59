"""vsftpd: as its own user, where files go by memory, and as root with its defaults (a child for each session that is made by system call,
little address space, another user, another root, descriptors passed between processes), where they stay on TCP and must arrive as well."""

import hashlib
import os

import pytest

STDIO = 16  # the reason in crates/sockets/src/reason.rs
SIZES = {"small": 1000, "medium": 300_000, "large": 19_090_223}


def content(name):
    return hashlib.sha256(name.encode()).digest() * (SIZES[name] // 32) + name.encode()


def vsftpd(r, need, *more):
    root, port = r.tmp / "root", r.free_port()
    for place in ("pub", "in", "empty"):
        (root / place).mkdir(parents=True)
    for name in SIZES:
        (root / "pub" / name).write_bytes(content(name))
    (root / "in").chmod(0o777)
    root.chmod(0o755)
    config = r.tmp / "vsftpd.conf"
    config.write_text("\n".join([
        "listen=YES", "background=NO", "listen_address=127.0.0.1", f"listen_port={port}", f"secure_chroot_dir={root}/empty",
        "anonymous_enable=YES", "no_anon_password=YES", f"anon_root={root}", "anon_world_readable_only=NO", "write_enable=YES",
        "anon_upload_enable=YES", "anon_umask=022", "xferlog_enable=NO", *more, ""]))
    r.server([need("vsftpd"), config], port)
    return root, port


def by_lftp(r, need, root, port):
    """Fetches and stores every file twice; what has come, by name."""
    got = r.tmp / "got"
    got.mkdir()
    commands = [f"get pub/{name} -o {got}/{name}{n}; put {root}/pub/{name} -o in/{name}{n}" for n in range(2) for name in SIZES]
    script = f"set cmd:fail-exit yes; set ftp:ssl-allow no; open -u anonymous,x -p {port} 127.0.0.1; {'; '.join(commands)}"
    r.run([need("lftp"), "--norc", "-c", script], timeout=90, env={"HOME": r.tmp})
    return checked(root, got)


def by_tnftp(r, need, root, port):
    got = r.tmp / "got"
    got.mkdir()
    commands = [f"get pub/{name} {got}/{name}{n}\nput {root}/pub/{name} in/{name}{n}\n" for n in range(2) for name in SIZES]
    script = f"open 127.0.0.1 {port}\nuser anonymous x\nbinary\n{''.join(commands)}bye\n"
    r.run([need("tnftp"), "-n", "-v"], input=script, timeout=90, env={"HOME": r.tmp})
    return checked(root, got)


def checked(root, got):
    for place in (got, root / "in"):
        for name in SIZES:
            for n in range(2):
                assert (place / f"{name}{n}").read_bytes() == content(name), f"{place.name}/{name}{n}"
    return len(list(got.iterdir())), len(list((root / "in").iterdir()))


@pytest.mark.parametrize("client", [by_lftp, by_tnftp])
def test_own_user(r, need, client):
    client(r, need, *vsftpd(r, need, "run_as_launching_user=YES"))
    # tnftp makes stdio streams of its connections, which stay on TCP.
    if client is by_lftp or r.mode != "shunt":
        r.accelerated()
    else:
        assert r.report.reasons().get(STDIO), r.report


@pytest.mark.alone("how much has gone by tcp when the ends have found each other is a matter of time")
def test_a_file_sent_by_one_sendfile(r, need):
    """The server makes one call for a file, however large: it must not count as a connection that is hardly used. (Ever larger pieces go by tcp,
    until it is in memory: transfer.rs.)"""
    root, port = vsftpd(r, need, "run_as_launching_user=YES")
    huge = content("large") * 7
    (root / "pub/huge").write_bytes(huge)
    script = f"set ftp:ssl-allow no; open -u anonymous,x -p {port} 127.0.0.1; get pub/huge -o {r.tmp}/huge"
    r.run([need("lftp"), "--norc", "-c", script], env={"HOME": r.tmp})
    assert (r.tmp / "huge").read_bytes() == huge
    r.accelerated()
    # What lftp and vsftpd say to each other is less.
    assert r.mode != "shunt" or r.report.ring_sent > len(huge) // 2, r.report


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may change user and root directory")
@pytest.mark.parametrize("more", [[], ["one_process_model=YES"], ["isolate=NO", "isolate_network=NO"]],
                         ids=["defaults", "one-process", "not-isolated"])
@pytest.mark.parametrize("client", [by_lftp, by_tnftp])
def test_defaults(r, need, client, more):
    client(r, need, *vsftpd(r, need, *more))
