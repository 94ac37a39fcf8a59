# Root rights for what is installed; sourced by scripts/bootstrap.sh and scripts/tests-root.sh. After become_root, $SUDO goes before a
# command that needs them: nothing for root, sudo where it works. Status 1 where it would ask for a password and there is no terminal.
SUDO=

become_root() {
    [ "$(id -u)" != 0 ] || return 0
    SUDO="sudo -n"
    sudo -n true 2>/dev/null && return 0
    SUDO=sudo
    command -v sudo >/dev/null 2>&1 && [ -t 0 ] && return 0
    SUDO=
    return 1
}
