"""Rules: who is accelerated, by program, role, address and port (shunt.rules(5)); the first that matches decides, and either end's may
keep a connection on TCP. Rules that are not understood keep everything there, and are told."""

import json
import os
import subprocess
import sys

import pytest

from harness import modes
from harness.system import until

RULE, BAD_RULES = 35, 36

# Talks to redis-server by hand: argv[1:] are host and port.
TALKER = """#!/usr/bin/env python3
import socket, sys
peer = socket.create_connection((sys.argv[1], int(sys.argv[2])))
for i in range(300):
    peer.sendall(b"PING\\r\\n")
    assert peer.recv(100) == b"+PONG\\r\\n"
"""


@pytest.fixture
def redis(r, need):
    """redis(server=RULES, client=RULES): a server and a client, each with its rules, in which {port} is the server's. program: the client, if
    not redis-cli; to: the address that it connects to; more: environment of both."""

    def run(server=None, client=None, host="127.0.0.1", program=None, to=None, more=None):
        port = r.free_port()

        def env(rules):
            return (more or {}) | ({"SHUNT_RULES": str(rules).format(port=port)} if rules else {})

        r.server([need("redis-server"), "--port", port, "--bind", host, "--save", "", "--dir", r.tmp], port, host=host, env=env(server))
        if program:
            return r.run([*program, to or host, port], env=env(client))
        result = r.run([need("redis-cli"), "-h", host, "-p", port], input="PING\n" * 1000, env=env(client))
        assert result.text.count("PONG") == 1000
        return result

    return run


def kept(r, *ends):
    """Asserts that the connection stayed on TCP, and that so many ends counted each reason: kept(r, RULE, RULE)."""
    r.not_accelerated()
    if r.mode == "shunt":
        wanted = {reason: ends.count(reason) for reason in set(ends)}
        assert {reason: n for reason, n in r.report.reasons().items() if reason in (RULE, BAD_RULES)} == wanted, r.report


# Both ends have these rules. moves: whether the connection moves; else which ends say why not.
BOTH = {
    "none matches": ("use tcp * * *:1", None),
    "port": ("use tcp * * *:{port}", [RULE, RULE]),
    "range of ports": ("use tcp * * *:15000-32000", [RULE, RULE]),
    "other ports": ("use tcp * * *:1-14999; use tcp * * *:32001-32767", None),
    "program": ("use tcp * redis-cli *:*", [RULE]),
    "programs": ("use tcp * redis-* *:*", [RULE, RULE]),
    "other program": ("use tcp * redis *:*; use tcp * edis-cli *:*; use tcp * redis-cl? *:1", None),
    "client": ("use tcp client * *:{port}", [RULE]),
    "server": ("use tcp server * *:{port}", [RULE]),
    "the client's own port is not asked": ("use tcp client * *:32768-65535; use tcp server * *:32768-65535", None),
    "address": ("use tcp * * 127.0.0.1:*", [RULE, RULE]),
    "address with bits": ("use tcp * * 127.64.0.0/8:{port}", [RULE, RULE]),
    "other bits": ("use tcp * * 127.0.0.128/25:*; use tcp * * 128.0.0.0/1:*; use tcp * * [::]/0:*", None),
    "the first: shunt": ("use shunt * * *:{port}; use tcp * * *:*", None),
    "the first: tcp": ("use tcp * * 127.0.0.0/8:*; use shunt * * *:{port}", [RULE, RULE]),
    "only that": ("use shunt client redis-cli 127.0.0.1:{port}; use tcp * * *:*", [RULE]),
}


@pytest.mark.parametrize("name", BOTH)
def test_rules_of_both_ends(r, redis, name):
    rules, reasons = BOTH[name]
    redis(rules, rules)
    kept(r, *reasons) if reasons else r.accelerated()


@pytest.mark.parametrize("end", ["server", "client"])
def test_either_end_may_keep_it_on_tcp(r, redis, end):
    redis(**{end: "use tcp * * *:*"})
    kept(r, RULE)


@pytest.mark.parametrize("rules,reasons", [("use tcp * * [::1]/128:{port}", [RULE, RULE]), ("use tcp * * [::]/0:*", [RULE, RULE]),
                                           ("use tcp * * [fe80::]/10:*; use tcp * * 0.0.0.0/0:*", None)])
def test_ipv6(r, redis, rules, reasons):
    redis(rules, rules, host="::1")
    kept(r, *reasons) if reasons else r.accelerated()


@pytest.mark.parametrize("rules,moves", [("use tcp * * 127.0.0.1:*", False), ("use tcp * * [::]/0:*", True)])
def test_ipv4_through_an_ipv6_socket_is_ipv4(r, redis, rules, moves):
    script = r.tmp / "talker"
    script.write_text(TALKER)
    redis(client=rules, program=[sys.executable, script], to="::ffff:127.0.0.1")
    r.accelerated() if moves else kept(r, RULE)


@pytest.mark.parametrize("rules,moves", [("use tcp * talker *:*", True), ("use tcp * python3 *:*", False)])
def test_a_script_has_the_name_of_its_interpreter(r, redis, rules, moves):
    script = r.tmp / "talker"
    script.write_text(TALKER)
    script.chmod(0o755)
    redis(client=rules, program=[script])
    r.accelerated() if moves else kept(r, RULE)


def test_rules_are_read_again_after_exec(r, redis):
    """sh, to which no rule applies, becomes redis-cli, which stays on TCP."""
    script = 'echo PING | redis-cli -h "$0" -p "$1" -r 1000 >/dev/null; exec redis-cli -h "$0" -p "$1" -r 1000 PING'
    redis(client="use shunt * sh *:*; use tcp * redis-cli *:*", program=["sh", "-c", script])
    kept(r, RULE, RULE)


@pytest.mark.parametrize("rules,moves", [("use tcp server nginx 127.0.0.1:{port}", False), ("use tcp server curl *:*", True)])
def test_forked_workers_have_their_parents_rules(r, need, rules, moves):
    port = r.free_port()
    conf = r.tmp / "nginx.conf"
    conf.write_text(f"""
        user root; worker_processes 2; daemon off; pid {r.tmp}/nginx.pid; error_log {r.tmp}/error.log;
        events {{ worker_connections 64; }}
        http {{
            access_log off; keepalive_requests 100000;
            client_body_temp_path {r.tmp}/body; proxy_temp_path {r.tmp}/proxy; fastcgi_temp_path {r.tmp}/fastcgi;
            uwsgi_temp_path {r.tmp}/uwsgi; scgi_temp_path {r.tmp}/scgi;
            server {{ listen 127.0.0.1:{port}; location / {{ return 200 "small\\n"; }} }}
        }}""")
    env = {"SHUNT_RULES": rules.format(port=port)}
    r.server([need("nginx"), "-c", conf, "-p", r.tmp, "-e", f"{r.tmp}/error.log"], port, env=env)
    out = r.run([need("curl"), "-sS", "--max-time", "30", *[f"http://127.0.0.1:{port}/"] * 300], env=env).text
    assert out == "small\n" * 300
    r.accelerated() if moves else kept(r, RULE)


# ---- where rules are ----


def test_a_file(r, redis):
    file = r.tmp / "my rules"
    file.write_text("# mine\n\nuse shunt * redis-server *:* # the client's decide\nuse tcp * redis-cli *:*\n")
    redis(file, file)
    kept(r, RULE)


def test_the_environment_counts_before_the_users_files(r, redis):
    config = r.tmp / "config"
    config.mkdir()
    (config / "shunt.rules").write_text("use tcp client * *:*\n")
    home = {"XDG_CONFIG_HOME": config}
    redis(more=home)
    kept(r, RULE)
    r.new_report()
    (config / "shunt.conf").write_text("rules = use tcp server * *:*; use tcp client * *:*\n")
    redis(more=home)
    kept(r, RULE, RULE)
    for rules in ("use tcp * * *:1", "/dev/null"):
        r.new_report()
        redis(rules, rules, more=home)
        r.accelerated()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts need root")
@pytest.mark.parametrize("user_file", ["absent", "another user's"])
def test_the_systems_file_counts_after_the_users(r, redis, user_file):
    """The client has an /etc of its own. A user's file that it may not read is passed over, as where a daemon has root's HOME."""
    etc, config = r.tmp / "etc", r.tmp / "config"
    etc.mkdir()
    config.mkdir()
    (etc / "shunt.rules").write_text("use tcp client redis-cli *:*\n")
    if user_file != "absent":
        (config / "shunt.rules").write_text("use shunt * * *:*\n")
        config.chmod(0o700)
    script = (f'mount --bind {etc} /etc; '
              'exec setpriv --reuid 65534 --regid 65534 --clear-groups redis-cli -h "$0" -p "$1" -r 300 PING')
    redis(program=["unshare", "-m", "--propagation", "private", "sh", "-ec", script], more={"XDG_CONFIG_HOME": config})
    kept(r, RULE)


# ---- rules that are not understood ----


WRONG = "use tcp * * *:1\nuse udp * * *:2\n"


def test_wrong_rules_keep_everything_on_tcp_and_print_nothing(r, redis):
    file = r.tmp / "wrong.rules"
    file.write_text(WRONG)
    result = redis(file, file)
    assert result.stderr == b""
    kept(r, BAD_RULES, BAD_RULES)


@pytest.mark.parametrize("rules", ["use tcp * * *:1; use udp", "wrong.rules", "/nonexistent", "/", ""])
def test_so_do_rules_that_cannot_be_found(r, redis, rules):
    redis(client=rules, more={} if rules else {"SHUNT_RULES": ""})
    kept(r, *[BAD_RULES] * (1 if rules else 2))


def test_a_pipe_does_not_hold_a_program_up(r, redis):
    subprocess.run(["mkfifo", r.tmp / "pipe"], check=True)
    redis(client=r.tmp / "pipe")
    kept(r, BAD_RULES)


def test_the_log_says_which_line(r, redis):
    file, log = r.tmp / "wrong.rules", r.tmp / "log"
    file.write_text(WRONG)
    redis(client=file, more={"SHUNT_LOG": log})
    if r.mode == "plain":
        return
    lines = log.read_text().splitlines()
    wanted = f'{file}:2: expected shunt or tcp; got "udp": every connection stays on tcp'
    assert [line.split("]: ")[1] for line in lines] == [wanted], lines


# ---- the command ----


@pytest.fixture
def shunt(r, mode):
    """Runs the command. None in mode plain: there is nothing to test."""
    if mode == "plain":
        return None
    command = modes.command()
    assert command, "the command `shunt` is not there: build it (cargo build --release), or set SHUNT_COMMAND to it"

    def run(*argv, env=None, **how):
        env = {"LD_PRELOAD": "", "SHUNT_LIB": modes.library(), "SHUNT_CONFIG": "/dev/null"} | (env or {})
        return r.run([command, *argv], env=env, **how)

    return run


def test_run_says_what_is_wrong_and_starts_the_program(r, shunt):
    if not shunt:
        return
    file = r.tmp / "wrong.rules"
    file.write_text(WRONG)
    result = shunt("run", "--rules", file, "--", "echo", "hello")
    assert result.text == "hello\n"
    assert result.stderr.decode().splitlines() == [
        f'shunt: {file}:2: expected shunt or tcp; got "udp"',
        "shunt: the rules are wrong: every connection stays on TCP. To do: correct them; `shunt help rules` says how"]


def test_run_does_not_start_it_under_require(r, shunt):
    if not shunt:
        return
    file = r.tmp / "wrong.rules"
    file.write_text(WRONG)
    for env, flags in (({"SHUNT_RULES": file}, []), ({}, ["--rules", file])):
        result = shunt("run", *flags, "--require", "--", "touch", r.tmp / "started", env=env, status=125)
        assert result.stderr.decode().startswith(f'shunt: {file}:2: expected shunt or tcp; got "udp"\n'), result.stderr
    assert not (r.tmp / "started").exists()


def test_require_fails_where_a_rule_keeps_all_on_tcp(r, shunt):
    if not shunt:
        return
    result = shunt("run", "--require", "--rules", "use tcp * * *:*", "--", r.apps / "echo", "small_messages", status=125)
    if r.mode == "shunt":
        assert "reasons: a rule says tcp (" in result.stderr.decode(), result.stderr


def test_stat_shows_the_reason(r, shunt, need):
    if not shunt:
        return
    port = r.free_port()
    server = r.server([need("redis-server"), "--port", port, "--save", "", "--dir", r.tmp], port, env={"SHUNT_RULES": f"use tcp server * *:{port}"})
    client = r.spawn([need("redis-cli"), "-p", port], stdin=subprocess.PIPE)
    client.popen.stdin.write(b"PING\n" * 100)
    client.popen.stdin.flush()
    until(lambda: client.out.read_text().count("PONG") == 100, 20, "all are answered")
    listed = json.loads(shunt("stat", "--json", server.pid).text)["processes"][0]["connections"] if r.mode == "shunt" else []
    client.popen.stdin.close()
    assert client.wait() == 0
    if r.mode == "shunt":
        assert [(c["reason"], c["local"], c["tx"], c["rx"]) for c in listed] == [("a rule says tcp", f"127.0.0.1:{port}", "tcp", "tcp")]


@pytest.mark.parametrize("name", BOTH)
def test_doctor_says_what_programs_then_do(r, shunt, name):
    """For each of the rules above: the lines that it names, and whether the client and the server move."""
    if r.mode != "shunt":
        return
    rules, reasons = (BOTH[name][0].format(port=20000), BOTH[name][1] or [])
    file = r.tmp / "my.rules"
    file.write_text(rules.replace("; ", "\n"))
    tcp = 0
    for program, role, does in (("redis-cli", "client", "connecting to"), ("redis-server", "server", "accepting at")):
        answer = json.loads(shunt("doctor", "--json", "--rules", program, "127.0.0.1:20000", env={"SHUNT_RULES": file}).text)[role]
        tcp += answer["path"] == "tcp"
        why = "no rule matches"
        if answer["rule"]:
            number = rules.split("; ").index(answer["rule"]) + 1
            assert answer["place"] == f"{file}:{number}"
            why = f"{answer['place']}: {answer['rule']}"
        text = shunt("doctor", "--rules", program, "127.0.0.1:20000", env={"SHUNT_RULES": file}).text
        assert f"{program}, {does} 127.0.0.1:20000: {answer['path']}\n    {why}\n" in text
    assert tcp == len(reasons)


def test_doctor_says_what_is_wrong(r, shunt):
    if not shunt:
        return
    file = r.tmp / "wrong.rules"
    file.write_text(WRONG)
    result = shunt("doctor", "--rules", "redis-cli", "127.0.0.1:80", env={"SHUNT_RULES": file}, status=1)
    assert f'{file}:2: expected shunt or tcp; got "udp"' in result.stderr.decode()
    check = [line for line in shunt("doctor", env={"SHUNT_RULES": file}, status=1).text.splitlines() if " rules " in line]
    assert check and check[0].startswith("FAIL") and f'{file}:2: expected shunt or tcp; got "udp"' in check[0]


@pytest.mark.parametrize("clears", [["env", "-i"], [sys.executable, "-c", "import os, sys; os.execve(sys.argv[1], sys.argv[1:], {})"]],
                         ids=["env -i", "execve"])
def test_a_cleared_environment_does_not_clear_rules(r, clears):
    """What a program starts is accelerated, too, with an empty environment if it is to be, and what was said of both still counts."""
    r.run([*clears, r.apps / "echo", "sizes_v4"], env={"SHUNT_EMPTY_ENV": "on"})
    r.accelerated()
    report = r.new_report()
    r.run([*clears, r.apps / "echo", "sizes_v4"], env={"SHUNT_RULES": "use tcp * * *:*", "SHUNT_EMPTY_ENV": "on"})
    r.not_accelerated(report)
