"""scripts/structure.py: what it finds in a crate made for it."""

import importlib.util

import pytest

from harness import modes


@pytest.fixture
def structure(tmp_path, monkeypatch):
    """The script as a module, for a workspace in tmp_path."""
    spec = importlib.util.spec_from_file_location("structure", modes.ROOT / "scripts" / "structure.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "SMALL", ["mini"])
    return module


@pytest.fixture
def mini(tmp_path):
    """mini({file: text}) writes these files of crates/mini/src."""

    def write(files):
        for name, text in files.items():
            path = tmp_path / "crates" / "mini" / "src" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    return write


# Crates whose modules a and b need each other, and none that does: how a names what is in b.
NEEDED = {
    "by path": ("pub fn f() { crate::b::g() }", True),
    "by import": ("use crate::b::g;\npub fn f() { g() }", True),
    "by group": ("use crate::{b::{self, g}};\npub fn f() { b::g() }", True),
    "by super": ("pub fn f() { super::b::g() }", True),
    "by method": ("pub fn f(it: &crate::c::C) { it.of_b() }", True),
    "passed on": ("pub use crate::b::g;\npub fn f() {}", False),
    "in a comment": ("pub fn f() {} // crate::b::g()", False),
    "in a string": ('pub fn f() { x("crate::b::g()") }', False),
    "in a test": ("pub fn f() {}\n#[cfg(test)]\nmod tests {\n    fn t() { crate::b::g() }\n}", False),
    "in an inner module": ("pub fn f() {}\nmod inner {\n    fn t() { super::super::b::g() }\n}", True),
}


@pytest.mark.parametrize("kind", NEEDED)
def test_circles(structure, mini, capsys, kind):
    a, knotted = NEEDED[kind]
    mini({"lib.rs": "mod a;\nmod b;\nmod c;\n", "a.rs": a, "c.rs": "pub struct C;\n",
          "b.rs": "use crate::c::C;\nimpl C {\n    pub fn of_b(&self) {}\n}\npub fn g() { crate::a::f() }\n"})
    assert structure.main(["circles", "mini"]) == knotted
    assert ("2 modules need each other: a, b" in capsys.readouterr().out) == knotted


def test_circles_of_three_in_folders(structure, mini, capsys):
    mini({"lib.rs": "mod a;\n", "a/mod.rs": "mod b;\nmod c;\npub fn f() { b::g() }\n", "a/b.rs": "pub fn g() { super::c::h() }\n",
          "a/c.rs": "pub fn h() { super::f() }\n"})
    assert structure.main(["circles", "-v"]) == 1
    out = capsys.readouterr().out
    assert "crates/mini: 3 modules need each other: a, a::b, a::c" in out
    assert "a::c -> a: " in out


def test_sizes(structure, mini, capsys):
    def lines(n):
        return "    x();\n" * n

    mini({"lib.rs": f"fn most() {{\n{lines(78)}}}\n\nfn more() {{\n{lines(79)}}}\n", "full.rs": "//\n" * 600, "long.rs": "//\n" * 601})
    assert structure.main(["sizes"]) == 1
    found = [line for line in capsys.readouterr().out.splitlines() if line.startswith("sizes: ")]
    assert sorted(found) == ["sizes: crates/mini/src/lib.rs: more() has 81 lines", "sizes: crates/mini/src/long.rs: 601 lines"]
    structure.SMALL = []
    assert structure.main(["sizes"]) == 0


def test_findings_that_are_known(structure, mini, capsys):
    mini({"lib.rs": "//\n" * 601})
    structure.OPEN["sizes"] = ["mini"]
    assert structure.main(["sizes", "-v"]) == 0
    assert "lib.rs: 601 lines (known)" in capsys.readouterr().out
    mini({"lib.rs": ""})
    assert structure.main(["sizes"]) == 1
    assert "take it out of OPEN" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["circle"], ["circles", "minni"], ["--verbose"]])
def test_a_word_that_is_neither_check_nor_crate(structure, mini, capsys, words):
    """It checked nothing, and found nothing."""
    mini({"lib.rs": ""})
    assert structure.main(words) == 2
    told = capsys.readouterr()
    assert words[-1] in told.err and "checks: floors, circles, sizes" in told.err and "crates: mini" in told.err
    assert told.out == ""
