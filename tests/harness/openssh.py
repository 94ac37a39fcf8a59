"""An sshd of our own, with keys of its own, and ssh, scp and sftp that know it as the host `there`."""

import os
import pwd
from pathlib import Path

from .payload import checksum

def sshd_config(r, need, port):
    """Keys and configuration of a server of ours, and of clients; returns the server's configuration."""
    for name in ("host_key", "user_key"):
        r.run([need("ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-f", r.tmp / name], plain=True)
    (r.tmp / "authorized_keys").write_bytes((r.tmp / "user_key.pub").read_bytes())
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd insists on it, and the service that makes it was never started
    server, client = r.tmp / "sshd_config", r.tmp / "ssh_config"
    server.write_text(f"""
        ListenAddress 127.0.0.1:{port}
        HostKey {r.tmp}/host_key
        PidFile {r.tmp}/sshd.pid
        AuthorizedKeysFile {r.tmp}/authorized_keys
        PermitRootLogin yes
        PasswordAuthentication no
        KbdInteractiveAuthentication no
        UsePAM no
        StrictModes no
        Subsystem sftp internal-sftp
        MaxSessions 100
        MaxStartups 100
        PrintMotd no
        PrintLastLog no
    """)
    client.write_text(f"""
        Host there beyond
            HostName 127.0.0.1
            Port {port}
            User {pwd.getpwuid(os.geteuid()).pw_name}
            IdentityFile {r.tmp}/user_key
            IdentitiesOnly yes
            BatchMode yes
            UserKnownHostsFile {r.tmp}/known_hosts
            StrictHostKeyChecking no
            LogLevel ERROR
            EscapeChar none
    """)
    return server


# sshd starts itself anew for each connection, unless told not to. Then the connection is one that Shunt has seen from the beginning,
# and goes through the hands of a process that locks itself in.
ONE_PROGRAM = "-r"


def start_sshd(r, need, *options):
    port = r.free_port()
    config = sshd_config(r, need, port)
    r.server([need("sshd"), "-D", "-e", "-f", config, *options], port)


class Client:
    """Runs ssh's programs."""

    def __init__(self, r, need):
        self.r, self.need = r, need

    def command(self, *arguments, program="ssh"):
        return [self.need(program), "-F", self.r.tmp / "ssh_config", *arguments]

    def run(self, *arguments, program="ssh", **how):
        return self.r.run(self.command(*arguments, program=program), **{"timeout": 60, **how})

    def there_and_back(self, data, *options):
        """Sends data to a cat at the other end, and looks at what comes back."""
        back = self.run(*options, "there", "cat", input=data).stdout
        assert checksum(back) == checksum(data), f"{len(data)} bytes there, {len(back)} back, or others"
