"""Sources of Debian packages whose tests are run: fetched once, by name, into build/sources, without a change to the machine's lists."""

import fcntl
import re
import shutil
import subprocess

from . import system
from .modes import ROOT

SOURCES = ROOT / "build/sources"


def distribution():
    """(id, code name) of what runs here."""
    words = dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', open("/etc/os-release").read(), re.M))
    return words["ID"], words["VERSION_CODENAME"]


def archive():
    """Where source packages of this distribution are, and the keys that they are signed with."""
    name, release = distribution()
    where = {"debian": "http://deb.debian.org/debian", "ubuntu": "http://archive.ubuntu.com/ubuntu"}[name]
    components = {"debian": "main", "ubuntu": "main universe"}[name]
    return f"deb-src [signed-by=/usr/share/keyrings/{name}-archive-keyring.gpg] {where} {release} {components}\n"


def source(package):
    """The folder with the upstream sources of `package`, in the version that the distribution has. Nobody may write there."""
    SOURCES.mkdir(parents=True, exist_ok=True)
    with open(SOURCES / f"{package}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return fetched(package)


def fetched(package):
    place = SOURCES / package
    if found := sorted(path for path in place.glob("*/") if (path / ".complete").exists()):
        return found[0]
    shutil.rmtree(place, ignore_errors=True)
    for part in ("lists/partial", "parts"):
        (place / part).mkdir(parents=True)
    (place / "parts/source.list").write_text(archive())
    options = ["-q", "-o", "Dir::Etc::SourceList=/dev/null", "-o", f"Dir::Etc::SourceParts={place}/parts", "-o", f"Dir::State::Lists={place}/lists",
               "-o", "APT::Sandbox::User="]
    for words in (["update"], ["source", "--download-only", package]):
        done = subprocess.run([*system.outside(), "apt-get", *options, *words], cwd=place, capture_output=True, text=True)
        assert done.returncode == 0, f"apt-get {' '.join(words)} in {place}:\n{done.stdout}{done.stderr}"
    tar = next(place.glob("*.orig.tar.*"))
    subprocess.run(["tar", "-xf", tar], cwd=place, check=True)
    tree = next(path for path in place.glob("*/") if path.name not in ("lists", "parts"))
    (tree / ".complete").touch()
    return tree
