#!/usr/bin/env bash
# `make fresh`: proves that the README's two commands work on a machine with nothing installed. Makes a Debian root with
# debootstrap, clones the committed state into it, and runs `make demo` and `make test` there, as root, with no terminal.
#
#   FRESH_SUITE=bookworm   the release            FRESH_TARGETS="demo test"   what to make
#   FRESH_ROOT=DIR         where (kept if given)   FRESH_KEEP=yes              do not delete it
#
# The new root gets from this machine only what a network asks for: its name servers, apt's mirror and Acquire settings, local CA
# certificates, proxy variables, and cargo's and pip's configuration, if there are any. It has its own mounts, processes
# and /dev/shm; it shares the network.
set -euo pipefail
cd "$(dirname "$0")/.."

suite=${FRESH_SUITE:-bookworm}
targets=${FRESH_TARGETS:-demo test}
repo=$PWD

main() {
    [ "$(id -u)" = 0 ] || { echo "make fresh: debootstrap and chroot need root" >&2; exit 1; }
    command -v debootstrap >/dev/null || {
        echo "make fresh: installing debootstrap, which makes the clean root" >&2
        apt-get install -y -q debootstrap >/dev/null
    }
    root=${FRESH_ROOT:-$(mktemp -d /var/tmp/shunt-fresh.XXXXXX)}
    # The home of the root user inside.
    its_home=$root/root
    if [ -z "${FRESH_ROOT:-}${FRESH_KEEP:-}" ]; then trap 'rm -rf --one-file-system "$root"' EXIT; fi
    # mktemp's 0700 would keep everyone but root (apt's own user, for one) out of the new system.
    mkdir -p "$root" && chmod 755 "$root"

    [ -z "$(git status --porcelain)" ] || echo "make fresh: uncommitted changes are not tested" >&2
    step "debootstrap $suite" debootstrap --variant=minbase "$suite" "$root" "$(mirror main)"
    step "network settings of this machine" settings
    step "git clone" git clone -q --no-local "$repo" "$its_home/shunt"
    # What the README asks of a newcomer.
    step "apt-get install git make" inside 'apt-get update -q && apt-get install -y -q git make'
    for target in $targets; do
        step "make $target" inside "cd shunt && make $target"
    done
    echo "make fresh: $targets passed on a clean $suite"
}

step() {
    local name=$1 start=$SECONDS
    shift
    echo "##### fresh: $name"
    "$@" </dev/null || { echo "make fresh: FAILED: $name" >&2; exit 1; }
    echo "##### fresh: $name: ok after $((SECONDS - start)) s"
}

# mirror COMPONENT: the address that this machine's apt takes Debian's SUITE from, or the public default.
mirror() {
    apt-get indextargets --format '$(ORIGIN) $(RELEASE) $(COMPONENT) $(REPO_URI)' 2>/dev/null |
        awk -v component="$1" -v suite="$suite" '$1 == "Debian" && $2 == suite && $3 == component { found = $4; exit }
            END { print found ? found : "http://deb.debian.org/debian" }'
}

settings() {
    # Debian's own suites as this machine knows them (security and updates matter: a current compiler comes from there).
    {
        echo "deb $(mirror main) $suite main"
        apt-get indextargets --format '$(ORIGIN) $(RELEASE) $(COMPONENT) $(REPO_URI)' 2>/dev/null | sort -u |
            awk -v suite="$suite" '$1 == "Debian" && index($2, suite "-") == 1 && $3 == "main" { print "deb", $4, $2, $3 }'
    } >"$root/etc/apt/sources.list"
    grep -q "$suite-security" "$root/etc/apt/sources.list" ||
        echo "deb http://deb.debian.org/debian-security $suite-security main" >>"$root/etc/apt/sources.list"
    apt-config dump | grep -E '^Acquire::(http|https|Retries|Check|ForceIPv|Proxy|AllowInsecure|AllowWeak|Languages)' \
        >"$root/etc/apt/apt.conf.d/90network" || true
    copy /etc/resolv.conf /etc/hosts /usr/local/share/ca-certificates /etc/pip.conf
    # Where this machine trusts more than its local certificates, until ca-certificates is installed there.
    local home=${HOME:-/root} file
    for file in .config/pip/pip.conf .pip/pip.conf .cargo/config.toml .cargo/config; do
        if [ -f "$home/$file" ]; then install -D -m 600 "$home/$file" "$its_home/$file"; fi
    done
}

copy() {
    local path
    for path in "$@"; do
        [ -e "$path" ] || continue
        mkdir -p "$root$(dirname "$path")"
        cp -rL --remove-destination -T "$path" "$root$path"
    done
}

# The network's part of this environment, and nothing else of it.
network_variables() {
    local name
    while read -r name; do
        # A folder of this machine means nothing there.
        case ${!name} in /*) [ "${!name#/etc/ssl/certs}" != "${!name}" ] || continue ;; esac
        printf '%s=%s\n' "$name" "${!name}"
    done < <(compgen -e | grep -E '^((https?|ftp|all|no)_proxy|(HTTPS?|FTP|ALL|NO)_PROXY|PIP_(INDEX|EXTRA|TRUSTED|CERT|DEFAULT).*|CARGO_(HTTP|NET|REGISTR|SOURCE).*|SSL_CERT_FILE|SSL_CERT_DIR|CURL_CA_BUNDLE|GIT_SSL_CAINFO|REQUESTS_CA_BUNDLE)$')
}

# inside COMMAND: in the clean root, with mounts and processes of its own that go when it ends.
inside() {
    local variables=()
    mapfile -t variables < <(network_variables)
    # shellcheck disable=SC2016 # $1 is the inner shell's
    unshare --mount --pid --ipc --fork --kill-child sh -ec '
        root=$1; shift
        # So that / is a mount point inside, as on a machine: tests make mount namespaces of their own.
        mount --bind "$root" "$root"
        mount -t proc proc "$root/proc"
        mount -t sysfs -o ro sys "$root/sys" 2>/dev/null || mount --rbind /sys "$root/sys"
        mount --rbind /dev "$root/dev"
        mount -t tmpfs -o mode=1777 shm "$root/dev/shm"
        mount -t tmpfs -o mode=1777 tmp "$root/tmp"
        exec chroot "$root" "$@"
    ' sh "$root" /usr/bin/env -i "${variables[@]}" HOME=/root TERM=dumb LANG=C.UTF-8 CI=true \
        PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin /bin/sh -ec "cd /root; $1"
}

main
