#!/usr/bin/env bash
# `make libcs`: the library, as it is built here, with other releases of glibc. For each Debian suite of LIBCS debootstrap makes a root in
# build/libcs (once; remove it to have it made anew). In it
#
#   * tests/apps is built by its compiler for its libc, and the tests of LIBCS_TESTS run with these programs, in mode shunt. They
#     start on this machine, so that their network and the agent are the tests'; only their libc is the root's;
#   * each program of /usr/bin is started with --version, twice without the library and once with it in LD_PRELOAD: the same output and
#     the same exit status, but for what differs without it as well.
#
# And with musl, for which tests/apps, and Redis, are built by this machine's musl-gcc.
#
#   LIBCS="musl bullseye trixie sid"   musl, and the suites
#   LIBCS_TESTS=...               the files of tests
set -euo pipefail
cd "$(dirname "$0")/.."

suites=${LIBCS:-musl bullseye trixie sid}
tests=${LIBCS_TESTS:-tests/test_sockets.py tests/test_sets.py tests/test_exec.py tests/test_leftover.py tests/test_death.py tests/test_interrupts.py}
target=${CARGO_TARGET_DIR:-$PWD/target}
export SHUNT_LIB=${SHUNT_LIB:-$target/release/libshunt.so} SHUNT_COMMAND=${SHUNT_COMMAND:-$target/release/shunt}
repo=$PWD

main() {
    [ "$(id -u)" = 0 ] || { echo "make libcs: debootstrap and chroot need root" >&2; exit 1; }
    command -v debootstrap >/dev/null || apt-get install -y -q debootstrap >/dev/null
    local suite status=0
    for suite in $suites; do
        root=$repo/build/libcs/$suite/root apps=$repo/build/libcs/$suite/apps
        echo "##### libcs: $suite"
        if [ "$suite" = musl ]; then
            musl || status=1
            continue
        fi
        new_root "$suite"
        programs "$suite"
        examples || status=1
        starts "$suite" || status=1
    done
    return $status
}

# What musl does in ways of its own, also without the library: what fflush() does to input, what puts() returns, the size that a
# buffer has, clone() without a function, and vectors with bad addresses.
not_musls="fully_buffered or input_flushed or reopened_standard or fork_clone_function or bad_vector"

musl() {
    apps=$repo/build/libcs/musl/apps
    local libraries=$repo/build/libcs/musl/lib file
    mkdir -p "$apps" "$libraries"
    # musl takes glibc's libraries that ask for nothing else of it.
    for file in /usr/lib/"$(gcc -print-multiarch)"/lib{aio,uring}.so*; do ln -sf "$file" "$libraries"; done
    headers="-idirafter /usr/include -idirafter /usr/include/$(gcc -print-multiarch)"
    make -s -k -j2 -C tests/apps OUT="$apps" CC="musl-gcc $headers -include older.h -L$libraries -Wl,-rpath,$libraries" \
        >"$apps/../programs.log" 2>&1 || true
    not_built "$apps/.."
    echo "libcs: musl $(dpkg-query -W -f '${Version}' musl); not to be built for it, not run: ${absent:-none}" | tr '\n' ' '
    echo
    local status=0
    examples "and not ($not_musls)" || status=1
    redis || status=1
    return $status
}

# Redis as Alpine has it, with the tests of Redis.
redis() {
    local source folder=$repo/build/libcs/musl/redis
    if [ ! -e "$folder/made" ]; then
        source=$(build/venv/bin/python -c 'import sys; sys.path.insert(0, "tests"); from harness import sources; print(sources.source("redis"))')
        rm -rf "$folder"
        cp -r "$source" "$folder"
        make -s -j2 -C "$folder/src" MALLOC=libc USE_SYSTEMD=no BUILD_TLS=no CC="musl-gcc $headers" redis-server redis-benchmark redis-cli \
            >"$folder.log" 2>&1 || { tail -5 "$folder.log"; return 1; }
        touch "$folder/made"
    fi
    PATH=$folder/src:$PATH build/venv/bin/python -m pytest tests/test_redis.py -q -ra -p no:cacheprovider --modes shunt
}

new_root() {
    [ -e "$root/made" ] && return 0
    rm -rf --one-file-system "$root"
    mkdir -p "$root" "$apps"
    debootstrap --variant=minbase --include=gcc,g++,libc6-dev,make,libaio-dev,liburing-dev,python3-minimal \
        "$1" "$root" http://deb.debian.org/debian >"$root/../debootstrap.log" 2>&1 ||
        { tail -5 "$root/../debootstrap.log" >&2; echo "make libcs: debootstrap of $1 failed" >&2; exit 1; }
    touch "$root/made"
}

# inside COMMAND: in the root, with this folder as /mnt. Its mounts end with it.
inside() {
    unshare --mount sh -c 'mount --bind "$1" "$2/mnt" && mount -t proc proc "$2/proc" && mount --rbind /dev "$2/dev" && shift && exec chroot "$@"' \
        sh "$repo" "$root" sh -c "$1"
}

# Each program is started by its libc's own loader, which it names, and finds that libc by its path.
programs() {
    local loader folder
    loader=$root$(inside 'readlink -f "$(ldd /bin/true | grep -o "/[^ ]*/ld-linux[^ ]*")"')
    folder=$(dirname "$loader")
    inside "make -s -k -j2 -C /mnt/tests/apps OUT=/mnt/build/libcs/$1/apps \
        CC='gcc -include older.h -Wl,--dynamic-linker=$loader -Wl,--disable-new-dtags,-rpath,$folder' \
        CXX='g++ -Wl,--disable-new-dtags,-rpath,$folder'" >"$root/../programs.log" 2>&1 || true
    not_built "$root/.."
    echo "libcs: $1 has $(inside 'ldd --version | head -1'); not to be built there, not run: ${absent:-none}" | tr '\n' ' '
    echo
}

# Sets `absent`, of the log in this folder.
not_built() {
    # None is what is wanted, and grep's status 1.
    absent=$({ grep -oE 'Makefile:[0-9]+: [^]]*/[a-z_]+\] Error' "$1/programs.log" || true; } | sed 's|.*/||; s|\] Error||' | sort -u)
}

examples() {
    local choice="not sandbox ${1-}" name
    for name in $absent; do choice="$choice and not -$name-"; done
    # shellcheck disable=SC2086 # words
    build/venv/bin/python -m pytest $tests -q -ra -p no:cacheprovider --modes shunt --apps "$apps" -k "$choice"
}

starts() {
    cp "$SHUNT_LIB" "$root/libshunt.so"
    cat >"$root/starts.sh" <<'END'
cd /tmp
for program in /usr/bin/*; do
    [ -f "$program" ] && [ -x "$program" ] || continue
    echo "== $program"
    timeout 10 "$program" --version </dev/null 2>&1
    echo "== $?"
done
END
    local run
    for run in first second; do inside 'sh /starts.sh' >"$root/../starts.$run" 2>&1; done
    inside 'LD_PRELOAD=/libshunt.so sh /starts.sh' >"$root/../starts.shunt" 2>&1
    build/venv/bin/python - "$root/.." <<'END'
import re, sys
from pathlib import Path

def read(name):
    parts = re.split(rb"^== (/.*)\n", (Path(sys.argv[1]) / f"starts.{name}").read_bytes(), flags=re.M)[1:]
    return dict(zip(parts[::2], parts[1::2]))

first, second, shunt = map(read, ("first", "second", "shunt"))
same = [name for name in first if first[name] == second.get(name)]
wrong = [name for name in same if shunt.get(name) != first[name]]
for name in wrong:
    print(f"{name.decode()}: without the library {first[name]!r}, with it {shunt.get(name)!r}")
print(f"libcs: {len(same)} programs started, {len(wrong)} not as without the library; {len(first) - len(same)} are never the same")
sys.exit(bool(wrong) or len(same) < 200)
END
}

main
