#!/usr/bin/env bash
# Debian packages that only tests need, without a change to this machine: they are installed into build/packages, and seen in a mount
# namespace only.
#
#   scripts/tests-root.sh install GROUP    what `scripts/bootstrap.sh GROUP` would install on the machine (scripts/bootstrap.sh calls this)
#   scripts/tests-root.sh enter COMMAND... runs a command that sees those packages, each file in its usual place (scripts/test.sh calls this)
#   scripts/tests-root.sh possible         whether this works here
#   scripts/tests-root.sh remove           removes them, for `make clean`
#
# How: in a mount namespace of its own, each folder that packages write to (/usr, /etc, /var, ...) is an overlay of build/packages/FOLDER on the
# machine's. `install` runs apt there: packages, users, alternatives and package lists all go to build/packages, for maintainer scripts run as
# ever, but see no service manager and no process of the machine. What apt removes there (xinetd, where inetd is wanted) stays on the
# machine. `enter` puts another layer on it, in memory, which is thrown away: what tests write there is gone after them. It takes root
# (or sudo), and a kernel that lets root mount: not so in most containers. There, scripts/bootstrap.sh says what is missing, and tests that
# need it say that they did not run.
#
# When the machine's own packages change, all is made again, of archives kept in build/debs.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/root.sh

root=$PWD/build/packages
debs=$PWD/build/debs
machine=/var/lib/dpkg/status

main() {
    local verb=${1:?"usage: scripts/tests-root.sh install GROUP | enter COMMAND... | possible | remove"}
    shift
    case $verb in
    install) install "$@" ;;
    enter) enter "$@" ;;
    possible) possible ;;
    remove) remove ;;
    # As root, in a mount namespace of their own:
    install-inside) install_inside "$@" ;;
    enter-inside) enter_inside "$@" ;;
    *) echo "scripts/tests-root.sh: no such verb: $verb (install, enter, possible, remove)" >&2; exit 2 ;;
    esac
}

install() {
    become_root || { echo "tests-root: not root, and no sudo that works without a terminal" >&2; return 1; }
    if [ -e "$root" ] && ! cmp -s "$machine" "$root/machine"; then remove; fi
    mkdir -p "$debs/partial" "$root"
    exec 9>"$root/lock"
    flock 9
    [ -e "$root/machine" ] || cp "$machine" "$root/machine"
    # Processes of its own, so that no maintainer script can stop one of the machine's.
    $SUDO env PATH="$PATH" HOME="$HOME" unshare --mount --pid --fork --kill-child --mount-proc "$0" install-inside "$@"
}

possible() {
    become_root && command -v apt-get >/dev/null || return 1
    # shellcheck disable=SC2016 # the inner shell's
    $SUDO unshare --mount sh -ec 'mount -t tmpfs none /mnt; mkdir /mnt/upper /mnt/work
        mount -t overlay tests -o lowerdir=/etc,upperdir=/mnt/upper,workdir=/mnt/work /etc' 2>/dev/null
}

install_inside() {
    # As the machine's, but whatever is written there is thrown away; and no service manager is there to be talked to.
    layers "$root" "$root" $(folders)
    scratch
    layers / "$scratch" run
    rm -rf /run/systemd/system /run/dbus/system_bus_socket
    mount --bind /proc/sys /proc/sys
    mount -o remount,bind,ro /proc/sys
    local place
    for place in /proc/sys/fs/binfmt_misc /sys/kernel/security; do
        [ ! -d $place ] || mount -t tmpfs none $place
    done
    # Its own files in apt's cache would be in build/packages, where `remove` finds them.
    mount --bind "$debs" /var/cache/apt/archives
    BOOTSTRAP=install PACKAGES_ONLY=yes MAY_REMOVE=yes NEEDRESTART_SUSPEND=yes scripts/bootstrap.sh "$@"
}

enter() {
    if [ -n "${TESTS_ROOT-}" ] || ! is_there || ! possible; then exec "$@"; fi
    # sudo keeps little of the environment.
    local kept
    kept=$(mktemp)
    export TESTS_ROOT=$root
    export -p >"$kept"
    exec $SUDO unshare --mount "$0" enter-inside "$kept" "$(id -u)" "$(id -g)" "$PWD" "$@"
}

enter_inside() {
    local kept=$1 uid=$2 gid=$3 folder=$4
    shift 4
    scratch
    layers "$root" "$scratch" $(folders)
    cd "$folder"
    if [ "$uid" = 0 ]; then
        rm -f "$kept"
        exec "$@"
    fi
    # shellcheck disable=SC2016 # the inner shell's
    exec setpriv --reuid="$uid" --regid="$gid" --init-groups bash -c '. "$1"; rm -f "$1"; shift; exec "$@"' bash "$kept" "$@"
}

# Whether anything is installed there.
is_there() {
    [ -n "$(find "$root" -mindepth 3 -path '*/upper/*' -print -quit 2>/dev/null)" ]
}

# The folders at / that packages write to. /bin, /lib and others are links into /usr almost everywhere.
folders() {
    local name
    for name in usr etc var opt srv bin sbin lib lib64; do
        if [ -d "/$name" ] && [ ! -L "/$name" ]; then echo "$name"; fi
    done
}

# A folder in memory, seen by nobody else.
scratch() {
    scratch=$root/scratch
    mkdir -p "$scratch"
    mount -t tmpfs -o mode=755 none "$scratch"
}

# layers UNDER OVER FOLDER...: /FOLDER becomes what is in OVER, on what is in UNDER (unless it is the same), on the machine's.
layers() {
    local under=$1 over=$2 name below kept=() place number
    shift 2
    local keep
    keep=$(mktemp -d "$root/keep.XXXXXX")
    for name in "$@"; do
        # What has to stay as it is below: other mounts, and what the tests work in.
        mapfile -t kept < <(staying "/$name")
        for number in "${!kept[@]}"; do
            if [ -d "${kept[number]}" ]; then mkdir "$keep/$number"; else : >"$keep/$number"; fi
            mount --rbind "${kept[number]}" "$keep/$number"
        done
        mkdir -p "$over/$name/upper" "$over/$name/work"
        # What is new in a folder is to look as the folder does.
        chmod --reference="/$name" "$over/$name/upper"
        chown --reference="/$name" "$over/$name/upper"
        below=/$name
        if [ "$under" != "$over" ] && [ -d "$under/$name/upper" ]; then below=$under/$name/upper:$below; fi
        mount -t overlay "tests-$name" -o "lowerdir=$below,upperdir=$over/$name/upper,workdir=$over/$name/work" "/$name"
        for number in "${!kept[@]}"; do
            place=${kept[number]}
            if [ ! -e "$place" ]; then continue; fi
            mount --rbind "$keep/$number" "$place"
            umount -l "$keep/$number"
        done
        rm -rf --one-file-system "${keep:?}"/*
    done
    rmdir "$keep"
}

# staying FOLDER: places below it that an overlay must not cover.
staying() {
    {
        awk -v folder="$1/" 'index($5, folder) == 1 { print $5 }' /proc/self/mountinfo
        printf '%s\n' /var/tmp "$PWD" "$HOME" "${CARGO_TARGET_DIR:-$PWD}" "${CARGO_HOME:-$HOME}" | awk -v folder="$1/" 'index($0, folder) == 1'
    } | sort -u | awk 'last == "" || index($0, last "/") != 1 { print; last = $0 }' # one within another comes with it
}

remove() {
    [ -e "$root" ] || return 0
    become_root || { echo "tests-root: $root belongs to root; please remove it" >&2; return 1; }
    $SUDO rm -rf --one-file-system "$root"
}

main "$@"
