# Finds a cargo that is new enough; meant to be sourced (POSIX sh). Sets nothing but the functions and MIN_RUST.
#
# Looked at, in this order: what PATH has, rustup's default place, Debian's and Ubuntu's versioned packages
# (/usr/lib/rust-1.NN/bin). SHUNT_TOOLCHAIN=DIR names one by hand.

MIN_RUST=$(sed -n 's/^rust-version *= *"\(.*\)"/\1/p' "${ROOT:?}/Cargo.toml")

# version_ge A B: is version A at least B? (Only major and minor matter here.)
version_ge() {
    a_major=${1%%.*}; a_rest=${1#*.}; a_minor=${a_rest%%.*}
    b_major=${2%%.*}; b_rest=${2#*.}; b_minor=${b_rest%%.*}
    [ "$a_major" -gt "$b_major" ] || { [ "$a_major" -eq "$b_major" ] && [ "$a_minor" -ge "$b_minor" ]; }
}

# tool_version PROGRAM: prints "1.96.0", or nothing.
tool_version() {
    # cd /: a rust-toolchain file or rustup override of the caller's folder must not decide this.
    (cd / && "$1" --version 2>/dev/null) | sed -n 's/^[a-z]* \([0-9][0-9]*\.[0-9][0-9]*\).*/\1/p' | head -n 1
}

# good_dir DIR: does DIR hold a cargo and a rustc that are both new enough?
good_dir() {
    [ -x "$1/cargo" ] && [ -x "$1/rustc" ] || return 1
    for tool in cargo rustc; do
        v=$(tool_version "$1/$tool")
        [ -n "$v" ] && version_ge "$v" "$MIN_RUST" || return 1
    done
}

# toolchain_dir: prints the folder to put in front of PATH, or fails.
toolchain_dir() {
    for dir in "${SHUNT_TOOLCHAIN:-}" "$(dirname "$(command -v cargo 2>/dev/null || echo /none/x)")" \
        "${CARGO_HOME:-${HOME:-/root}/.cargo}/bin" /usr/bin /usr/local/bin; do
        if [ -n "$dir" ] && good_dir "$dir"; then echo "$dir"; return 0; fi
    done
    newest=
    for dir in /usr/lib/rust-*/bin; do
        good_dir "$dir" && newest=$dir
    done
    [ -n "$newest" ] && echo "$newest"
}
