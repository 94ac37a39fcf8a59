#!/bin/sh
# Installs what is missing to build, demonstrate or test Shunt, on Debian 12 or later and Ubuntu.
#
#   scripts/bootstrap.sh build     a C compiler, make, a Rust compiler
#   scripts/bootstrap.sh demo      build + redis
#   scripts/bootstrap.sh ftp       build + an FTP server and two clients, for `make bench BENCH=ftp`
#   scripts/bootstrap.sh rpc       build + rpcgen and libtirpc, for `make bench BENCH=rpc`
#   scripts/bootstrap.sh ether     build + Ethernets in user space, FTP and RPC, for `make bench BENCH=ether`
#   scripts/bootstrap.sh ofi       build + libfabric and its fi_pingpong, for `make bench BENCH=ofi`
#   scripts/bootstrap.sh filters   build + ZeroMQ, and in build/bench-venv Shunt's Python package, ZeroMQ, Dask and Ray, for `make bench BENCH=filters`
#   scripts/bootstrap.sh test      build + what the tests drive, and a Python environment in build/venv
#   scripts/bootstrap.sh conformance   test + what foreign suites need
#   scripts/bootstrap.sh fuzz      build + a C++ compiler for libFuzzer
#
# Nothing is installed that is already here, every package is named with its reason first, no package is removed, and
# services that packages bring (redis, nginx, ...) are not started. It asks nothing. What it cannot do, it prints as
# the command for you to run.
#
# What only tests need (test, conformance) is not installed on this machine but in build/packages (scripts/tests-root.sh says how), unless
# BOOTSTRAP=install asks for that, as CI does on a machine that nobody else uses. Where neither is possible, tests that lack something
# say that they did not run.
set -eu

ROOT=$(cd "$(dirname "$0")/.." && pwd)
. "$ROOT/scripts/toolchain.sh"
. "$ROOT/scripts/root.sh"

wanted=          # packages to install
lacking=         # packages that tests need and that can be had nowhere
tests_root=no    # whether those are installed in build/packages
updated=         # apt-get update was done
POLICY=/usr/sbin/policy-rc.d

main() {
    [ $# -gt 0 ] || { sed -n '2,/^set/ s/^# \{0,1\}//p' "$0"; exit 2; }
    [ "$(uname -s)" = Linux ] || fail "Shunt runs on Linux; this is $(uname -s)."
    for group in "$@"; do
        case $group in
        build) need_build ;;
        demo) need_build; need_demo ;;
        test) need_build; need_here need_test ;;
        conformance) need_build; need_here need_test; need_here need_listed tests/conformance/packages.txt ;;
        venv) ;;
        fuzz) need_build; need_fuzz ;;
        ftp) need_build; need_ftp ;;
        rpc) need_build; need_rpc ;;
        ether) need_build; need_ether; need_ftp; need_rpc ;;
        ofi) need_build; need_ofi ;;
        filters) need_build; need_filters ;;
        *) fail "no such group: $group (build, demo, ftp, rpc, ether, ofi, filters, test, conformance, fuzz)" ;;
        esac
    done
    install_wanted
    toolchain_dir >/dev/null || fail "a Rust compiler >= $MIN_RUST is still missing after the installation"
    for group in "$@"; do
        case $group in
        test | conformance)
            [ $tests_root = no ] || "$ROOT/scripts/tests-root.sh" install "$group" || fail "this failed (see above); BOOTSTRAP=install puts packages on this machine"
            [ -z "$lacking" ] || say "without build/packages, which takes root and a kernel that lets it mount, tests that need these do not run:$lacking
  BOOTSTRAP=install would install them on this machine."
            [ -n "${PACKAGES_ONLY-}" ] || "$ROOT/scripts/tests-root.sh" enter "$ROOT/scripts/bootstrap.sh" venv
            ;;
        venv) python_environment ;;
        filters) bench_environment ;;
        esac
    done
}

# need_here COMMAND...: calls one of these for what only tests need: its packages are installed here, or in build/packages, or nowhere.
need_here() {
    if [ "${BOOTSTRAP-}" = install ]; then
        "$@"
    elif "$ROOT/scripts/tests-root.sh" possible; then
        tests_root=yes
    else
        # Without it there would be no test at all.
        need_python
        before=$wanted
        "$@"
        lacking=$lacking${wanted#"$before"} wanted=$before
    fi
}

need_build() {
    need_command cc gcc "the linker of the Rust compiler, and the C parts"
    need_file /usr/include/stdio.h libc6-dev "the C library's headers"
    need_command make make "runs the Makefiles"
    need_file /etc/ssl/certs/ca-certificates.crt ca-certificates "lets cargo fetch crates over https"
    toolchain_dir >/dev/null || need_rust
}

need_demo() {
    need_command redis-server redis-server "the unmodified program that the demonstration runs"
    need_command redis-benchmark redis-tools "the unmodified program that loads it"
}

need_ftp() {
    need_command vsftpd vsftpd "the FTP server that is measured"
    need_command lftp lftp "a client of it"
    need_command tnftp tnftp "the classic client of it"
}

need_rpc() {
    need_command rpcgen rpcsvc-proto "makes the stubs of the remote procedures that are measured"
    need_file /usr/include/tirpc/rpc/rpc.h libtirpc-dev "the library of remote procedure calls"
}

need_ether() {
    need_command ip iproute2 "makes the network namespaces"
    need_command ping iputils-ping "tells when they are joined"
    need_command tincd tinc "an Ethernet in user space to compare with"
    need_command fastd fastd "another one"
    need_command vde_switch vde2 "another one"
    need_command socat socat "another one"
}

need_ofi() {
    need_command fi_pingpong libfabric-bin "what streams over libfabric are compared with"
    need_file /usr/include/rdma/fi_rma.h libfabric-dev "another program that they are"
}

need_filters() {
    need_python
    need_file /usr/include/zmq.h libzmq3-dev "ZeroMQ, to compare with"
}

need_fuzz() {
    need_command c++ g++ "compiles libFuzzer for the fuzzers"
}

need_test() {
    need_demo
    need_fuzz
    need_python
    need_rustfmt
    [ -x /usr/bin/python3 ] || apt_update # its version is a part of a package's name
    need_listed tests/packages.txt
}

# need_listed FILE: the packages that it lists, a line each: name, then why.
need_listed() {
    while read -r package reason; do
        case $package in '' | '#'*) continue ;; esac
        reason=${reason#\#}; reason=${reason# }
        case $package in *3.N*) package=$(python_minor_for "$package") ;; esac
        need_package "$package" "${reason:-driven by the tests}"
    done <"$ROOT/$1"
}

# python_minor_for NAME: with the distribution's own version of Python in the place of 3.N.
python_minor_for() {
    minor=$(/usr/bin/python3 -c 'import sys; print(sys.version_info[1])' 2>/dev/null) ||
        minor=$(apt-cache depends python3 | sed -n 's/.*Depends: python3\.\([0-9]*\)$/\1/p' | head -n 1)
    echo "$1" | sed "s/3\.N/3.$minor/"
}

# Beside Debian's rustc-web only: rustup's toolchains bring their own, and another version would format otherwise.
need_rustfmt() {
    if dir=$(toolchain_dir) && [ "$dir" != /usr/bin ]; then return 0; fi
    case "$wanted $(dpkg-query -W -f '${db:Status-Status}' rustc-web 2>/dev/null)" in
    *rustc-web* | *" installed") need_command cargo-fmt rustfmt-web "checks the formatting" ;;
    esac
}

need_python() {
    if ! python3 -c 'import venv, ensurepip' 2>/dev/null; then
        need_package python3 "runs the black-box tests, and what filters are compared with"
        need_package python3-venv "keeps their Python packages in build/venv and build/bench-venv"
    fi
}

# A Rust compiler: Debian 12 has a current one beside its old rustc, Ubuntu has versioned ones, Debian 13 its own.
need_rust() {
    why="this workspace needs Rust $MIN_RUST or later"
    have=$(command -v rustc 2>/dev/null) && why="$why, $have is $(tool_version "$have")"
    apt_update
    if v=$(apt_version rustc-web) && version_ge "$v" "$MIN_RUST"; then
        need_package rustc-web "$why"
        need_package cargo-web "builds it, and goes with rustc-web"
        return
    fi
    if v=$(apt_version rustc) && version_ge "$v" "$MIN_RUST"; then
        need_package rustc "$why"
        need_package cargo "builds it"
        return
    fi
    for minor in $(apt-cache pkgnames rustc-1. 2>/dev/null | sed -n 's/^rustc-1\.\([0-9]*\)$/\1/p' | sort -rn); do
        if version_ge "1.$minor" "$MIN_RUST" && apt_version "cargo-1.$minor" >/dev/null; then
            need_package "rustc-1.$minor" "$why"
            need_package "cargo-1.$minor" "builds it"
            return
        fi
    done
    if command -v rustup >/dev/null 2>&1; then
        say "installing a stable toolchain with the rustup that is here: $why"
        rustup toolchain install stable --profile minimal -c rustfmt -c clippy && return
    fi
    fail "$why, and neither apt nor rustup offers one here. Install one (https://rustup.rs), or point
  SHUNT_TOOLCHAIN at the folder that holds cargo and rustc."
}

need_command() { # COMMAND PACKAGE REASON
    PATH=$PATH:/usr/sbin:/sbin command -v "$1" >/dev/null 2>&1 || need_package "$2" "$3"
}

need_file() { # FILE PACKAGE REASON
    [ -e "$1" ] || need_package "$2" "$3"
}

need_package() { # PACKAGE REASON
    case " $wanted " in *" $1 "*) return 0 ;; esac
    if [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; then return 0; fi
    say "missing: $1 ($2)"
    wanted="$wanted $1"
}

# apt_version PACKAGE: the version that apt would install ("1.96.0+dfsg1-1"), or failure. Call apt_update before.
apt_version() {
    v=$(LC_ALL=C apt-cache policy "$1" 2>/dev/null | sed -n 's/^  Candidate: \([0-9]*:\)\{0,1\}//p')
    [ -n "$v" ] && [ "$v" != "(none)" ] && echo "$v"
}

apt_update() {
    [ -z "$updated" ] || return 0
    updated=yes
    command -v apt-get >/dev/null 2>&1 || return 0
    become_root || return 0 # then the lists that are here must do
    $SUDO apt-get update -q >&2 </dev/null || say "apt-get update failed; going on with the package lists that are here"
}

install_wanted() {
    [ -n "$wanted" ] || return 0
    command="apt-get install -y --no-install-recommends $([ -n "${MAY_REMOVE-}" ] || echo --no-remove)$wanted"
    command -v apt-get >/dev/null 2>&1 || fail "this system has no apt; please install what these Debian packages hold:$wanted"
    become_root || fail "not root, and no sudo that works without a terminal. Please run as root:

    apt-get update && $command
"
    apt_update
    say "installing:$wanted"
    forbid_services
    ok=yes
    $SUDO env DEBIAN_FRONTEND=noninteractive $command -q -o Dpkg::Use-Pty=0 >&2 </dev/null || ok=no
    allow_services
    [ $ok = yes ] || fail "this failed (see above):

    $command

  If it wants to remove an older rustc or cargo of the distribution, decide that yourself:
  run it without --no-remove, or point SHUNT_TOOLCHAIN at a newer toolchain."
}

# Packages of servers start them when installed. The tests start their own, and yours are none of our business.
forbid_services() {
    [ ! -e $POLICY ] || return 0
    printf '#!/bin/sh\n# Put here by %s while it runs.\nexit 101\n' "$0" | $SUDO tee $POLICY >/dev/null
    $SUDO chmod 755 $POLICY
    trap allow_services EXIT
    trap 'exit 130' INT TERM
}

allow_services() {
    if grep -qs "Put here by $0" $POLICY; then $SUDO rm -f $POLICY; fi
}

# build/venv, made again when tests/requirements.txt changed.
python_environment() {
    requirements=$ROOT/tests/requirements.txt
    venv=$ROOT/build/venv
    [ -f "$requirements" ] || return 0
    if [ -x "$venv/bin/pytest" ] && cmp -s "$requirements" "$venv/requirements.txt"; then return 0; fi
    say "making build/venv for the tests' Python packages"
    rm -rf "$venv"
    python3 -m venv "$venv"
    "$venv/bin/pip" install -q --disable-pip-version-check -r "$requirements" >&2 </dev/null
    cp "$requirements" "$venv/requirements.txt"
}

# build/bench-venv: what `shunt bench filters` compares filters with in Python, and Shunt's own package, made anew each time, as what it is built of
# may have changed. What cannot be installed (Ray has no package for some versions of Python) is said here, and again in the table.
bench_environment() {
    requirements=$ROOT/bench/requirements.txt
    venv=$ROOT/build/bench-venv
    if [ ! -x "$venv/bin/maturin" ] || ! cmp -s "$requirements" "$venv/requirements.txt"; then
        say "making build/bench-venv for the Python packages that are measured"
        rm -rf "$venv"
        python3 -m venv "$venv"
        sed 's/ *#.*//; /^$/d' "$requirements" | while read -r package; do
            "$venv/bin/pip" install -q --disable-pip-version-check "$package" >&2 </dev/null || say "no $package here; going on without it"
        done
        cp "$requirements" "$venv/requirements.txt"
    fi
    WHEEL_VENV=build/bench-venv "$ROOT/scripts/wheel.sh" >&2
    "$venv/bin/pip" install -q --disable-pip-version-check --force-reinstall --no-deps "$ROOT"/build/wheels/shunt-*.whl >&2 </dev/null
}

say() { echo "bootstrap: $*" >&2; }
fail() { echo "bootstrap: $*" >&2; exit 1; }

main "$@"
