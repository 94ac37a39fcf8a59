#!/bin/sh
# make dist: a tarball of what `make install` puts under /usr/local. Unpack it with tar -C / -xzf.
set -eu
cd "$(dirname "$0")/.."
version=$(sed -n 's/^version *= *"\(.*\)"/\1/p' Cargo.toml | head -n 1)
name=shunt-$version-$(uname -m)
rm -rf build/dist && mkdir -p build/dist
make --no-print-directory install DESTDIR="$PWD/build/dist" PREFIX=/usr/local CARGO_TARGET_DIR="${1:-target}" >/dev/null
tar -C build/dist --owner=0 --group=0 -czf "build/$name.tar.gz" usr
echo "build/$name.tar.gz"
