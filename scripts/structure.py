#!/usr/bin/env python3
"""Checks how the crates are built, from their sources: `scripts/structure.py [CHECK...] [CRATE...] [-v]`.

  floors    which crate uses which, against the table of ARCHITECTURE.md ("The crates, bottom up")
  circles   modules that need each other, in any crate (tests apart)
  sizes     functions and files that are too long, in the crates that run in other people's programs
  comments  lines of comments that are longer than 100 characters

`scripts/structure.py inside` prints the files that run in other people's programs, as that table has them.

Exit status 1 if anything is found in a crate that is free of it so far: those that are not yet are in OPEN below. 2 for a word that is
neither a check nor a crate."""

import json
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Where functions may have 80 lines and files 600.
SMALL = ["fabric", "preload", "sockets", "stream"]
FUNCTION_LINES, FILE_LINES = 80, 600
COMMENT_WIDTH = 100


# Crates with findings still. One that has none any more is to be taken out.
OPEN = {
    "floors": [],
    "circles": [],
    "sizes": [],
    "comments": [],
}


# ---- reading Rust ----


def without_comments(text, keep="\0"):
    """The text with comments, strings and characters blanked, each line at its place; but those that begin with `keep`."""
    pattern = r'//[^\n]*|/\*.*?\*/|b?r(#*)".*?"\1|b?"(?:\\.|[^"\\])*"|b?\'(?:\\[^\n]{1,9}?|[^\\\'\n])\''
    return re.sub(pattern, lambda found: found.group() if found.group().startswith(keep)
                  else re.sub(r"[^\n]", " ", found.group()), text, flags=re.S)


def without_tests(text):
    """The text without modules that are compiled for tests only."""
    while found := re.search(r"#\[cfg\((?:all\()?test\b[^\]]*\]\s*(?:#\[[^\]]*\]\s*)*(?:pub(?:\([^)]*\))? )?mod \w+ ", text):
        end = text.find("{", found.end() - 1)
        semicolon = text.find(";", found.end() - 1)
        if 0 <= semicolon < end or end < 0:
            end = semicolon
        else:
            end = closing(text, end)
        text = text[:found.start()] + re.sub(r"[^\n]", " ", text[found.start():end + 1]) + text[end + 1:]
    return text


def without_inner_modules(text):
    """The text in which modules written out within a file name the file's own module by `self`, as they are part of it here."""
    for found in re.finditer(r"\bmod \w+\s*\{", text):
        end = closing(text, found.end() - 1)
        inside = re.sub(r"(?<![\w:])super::super::", "super::", re.sub(r"(?<![\w:])super::(?!super::)", "self::", text[found.end():end]))
        text = text[:found.end()] + inside.ljust(end - found.end()) + text[end:]
    return text


def closing(text, at):
    """The place of the brace that closes the one at `at`."""
    depth = 0
    for i in range(at, len(text)):
        depth += (text[i] == "{") - (text[i] == "}")
        if depth == 0:
            return i
    return len(text) - 1


class Crate:
    """The modules of a crate by their paths, as tuples, with their text."""

    def __init__(self, folder):
        self.name, self.folder = folder.name, folder
        self.files, self.modules, self.uses = {}, {}, {}
        source = folder / "src"
        for path in sorted(source.rglob("*.rs")):
            parts = path.relative_to(source).with_suffix("").parts
            if parts[0] == "bin":
                continue
            if parts[-1] in ("mod", "lib", "main"):
                parts = parts[:-1]
            if parts in self.files and path.name == "main.rs":
                continue
            self.files[parts] = path
            self.modules[parts] = without_inner_modules(without_tests(without_comments(path.read_text())))
        for module, text in self.modules.items():
            self.uses[module] = dict(imports(text))
        self.scattered = self.scattered_methods()

    def edges(self):
        """module -> {module that it needs: a name by which it does}."""
        edges = defaultdict(dict)
        for module, text in self.modules.items():
            body = re.sub(r"\b(use\s[^;]*|mod\s+\w+\s*);", " ", text)
            # What is only passed on, by `pub use`, is not needed here.
            passed_on = re.sub(r"\bpub(\([^)]*\))?\s+use\s[^;]*;", " ", text)
            paths = [path for _, path in imports(passed_on, private=True)]
            paths += [path for name, path in imports(text) if re.search(rf"(?<![\w:.]){name}\b", body)]
            paths += re.findall(r"(?<![\w:])((?:\w+::)+\w+)", body)
            for path in paths:
                target = self.resolve(module, path.split("::"), first=True)
                if target is not None and target != module:
                    edges[module].setdefault(target, path)
            for name in set(re.findall(r"\.(\w+)\(", body)) & self.scattered.keys():
                if self.scattered[name] != module:
                    edges[module].setdefault(self.scattered[name], f".{name}()")
        return edges

    def scattered_methods(self):
        """name -> module, of methods that a type has in another module than its own: nothing else shows who needs them. Only names that no other
        function of the crate has."""
        defined = {(found, module) for module, text in self.modules.items()
                   for found in re.findall(r"\b(?:struct|enum)\s+(\w+)", text)}
        modules, count = {}, defaultdict(int)
        for module, text in self.modules.items():
            for name in re.findall(r"\bfn\s+(\w+)", text):
                count[name] += 1
            for found in re.finditer(r"^impl(?:<[^>]*>)?\s+(\w+)[^{;]*?\{", text, flags=re.M):
                if " for " not in found.group() and (found.group(1), module) not in defined:
                    for name in re.findall(r"\bfn\s+(\w+)", text[found.end():closing(text, found.end() - 1)]):
                        modules[name] = module
        return {name: module for name, module in modules.items() if count[name] == 1}

    def resolve(self, module, path, first=False, depth=0):
        """The module in which what `path` names from `module` is defined; None if that is another crate."""
        head, *rest = path
        if head == "crate":
            at = ()
        elif head == "super":
            at = module[:-1]
            while rest and rest[0] == "super":
                at, rest = at[:-1], rest[1:]
        elif head == "self":
            at = module
        elif module + (head,) in self.modules:
            at = module + (head,)
        elif head in self.uses[module] and depth < 8:
            found = self.uses[module][head]
            return None if found.split("::")[0] == head else self.resolve(module, found.split("::") + rest, depth=depth + 1)
        else:
            return None if first else module
        for i, name in enumerate(rest):
            if at + (name,) in self.modules:
                at += (name,)
            elif name in self.uses[at] and depth < 8:
                inner = self.uses[at][name].split("::")
                found = self.resolve(at, inner + rest[i + 1:], depth=depth + 1)
                return at if found is None else found
            else:
                break
        return at


def imports(text, private=False):
    """(name, path) of each import in the text. private: those of globs as well."""
    for tree in re.findall(r"\buse\s+([^;]+);", text):
        for path in leaves(re.sub(r"\s+", " ", tree).strip()):
            path, _, name = path.partition(" as ")
            path = path.replace(" ", "").removesuffix("::self")
            name = name.strip() or path.split("::")[-1]
            if name != "*" or private:
                yield name, path.removesuffix("::*")


def leaves(tree, prefix=""):
    """The paths of a use tree."""
    brace = tree.find("{")
    if brace < 0:
        yield prefix + tree
        return
    inside, depth, start = tree[brace + 1:tree.rfind("}")], 0, 0
    for i, letter in enumerate(inside + ","):
        depth += (letter == "{") - (letter == "}")
        if letter == "," and depth == 0:
            if part := inside[start:i].strip():
                yield from leaves(part, prefix + tree[:brace].strip())
            start = i + 1


# ---- floors ----


def table():
    """The rows of ARCHITECTURE.md's table: crate -> (crates that it may use, what of it runs in other people's processes)."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    rows = re.search(r"^\| crate \|.*\n\|[-|]+\n((?:\|.*\n)+)", text, flags=re.M).group(1)
    found = {}
    for row in rows.splitlines():
        name, _, uses, inside = (cell.strip() for cell in row.strip("|").split("|"))
        found[name.strip("`")] = ([word for word in uses.split(", ") if word != "–"], inside)
    return found


def dependencies():
    """crate -> the crates of the workspace that it uses, but in tests and to be built."""
    command = [ROOT / "scripts" / "cargo", "metadata", "--no-deps", "--format-version", "1", "--offline"]
    packages = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=ROOT).stdout)["packages"]
    # By their folders: a package may have a longer name.
    return {Path(package["manifest_path"]).parent.name: {Path(dependency["path"]).name for dependency in package["dependencies"]
                                                         if dependency["kind"] is None and dependency.get("path")} for package in packages}


def floors(crates, verbose):
    rows, real = table(), dependencies()
    order = list(rows)
    for name in [crate.name for crate in crates] + [name for name in rows if name not in real]:
        if name not in rows:
            yield name, f"crates/{name}: is not in ARCHITECTURE.md's table"
            continue
        if name not in real:
            yield name, f"{name}: is in ARCHITECTURE.md's table, and is no crate"
            continue
        may = rows[name][0]
        for other in sorted(real[name] - set(may)):
            yield name, f"crates/{name}: uses {other}, which ARCHITECTURE.md's table does not allow"
        for other in may:
            if other not in real[name]:
                yield name, f"crates/{name}: does not use {other}, as ARCHITECTURE.md's table says"
            elif other in rows and order.index(other) > order.index(name):
                yield name, f"crates/{name}: uses {other}, which stands below it in ARCHITECTURE.md's table"
        for path in inside(name, rows[name][1]):
            if not path.exists():
                yield name, f"{path.relative_to(ROOT)}: is in ARCHITECTURE.md's table, and is not there"


def inside(name, cell):
    """The files, and folders, of a crate that run in other people's processes."""
    source = ROOT / "crates" / name / "src"
    if cell == "all":
        return [source]
    return [source / word for word in re.findall(r"`([^`]+)`", cell)]


# ---- circles ----


def knots(nodes, edges):
    """The sets of nodes that reach each other (Tarjan)."""
    index, low, stack, found = {}, {}, [], []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in edges.get(node, ()):
            if other not in index:
                visit(other)
            if other in stack:
                low[node] = min(low[node], low[other])
        if low[node] == index[node]:
            at = stack.index(node)
            if len(stack) - at > 1:
                found.append(sorted(stack[at:]))
            del stack[at:]

    for node in nodes:
        if node not in index:
            visit(node)
    return found


def circles(crates, verbose):
    for crate in crates:
        edges = crate.edges()
        for knot in knots(crate.modules, edges):
            names = ", ".join("::".join(module) or "(root)" for module in knot)
            yield crate.name, f"crates/{crate.name}: {len(knot)} modules need each other: {names}"
            if verbose:
                for a in knot:
                    for b in knot:
                        if b in edges[a]:
                            print(f"    {'::'.join(a) or '(root)'} -> {'::'.join(b) or '(root)'}: {edges[a][b]}")


# ---- sizes ----


def sizes(crates, verbose):
    for crate in crates:
        if crate.name not in SMALL:
            continue
        for module, text in crate.modules.items():
            name = crate.files[module].relative_to(ROOT)
            lines = crate.files[module].read_text().count("\n")
            if lines > FILE_LINES:
                yield crate.name, f"{name}: {lines} lines"
            for found in re.finditer(r"\bfn (\w+)", text):
                start = text.find("{", found.end())
                semicolon = re.search(r";(?![^\[]*\])", text[found.end():])
                if start < 0 or semicolon and found.end() + semicolon.start() < start:
                    continue
                length = text.count("\n", found.start(), closing(text, start)) + 1
                if length > FUNCTION_LINES:
                    yield crate.name, f"{name}: {found.group(1)}() has {length} lines"


# ---- comments ----


def comments(crates, verbose):
    for crate in crates:
        for path in sorted(crate.folder.rglob("*.rs")):
            for number, line in enumerate(without_comments(path.read_text(), keep="//").split("\n"), 1):
                if line.lstrip().startswith("//") and len(line) > COMMENT_WIDTH:
                    yield crate.name, f"{path.relative_to(ROOT)}:{number}: a comment of {len(line)} characters"


CHECKS = {"floors": floors, "circles": circles, "sizes": sizes, "comments": comments}


def main(words):
    if words == ["inside"]:
        for name, (_, cell) in table().items():
            for path in inside(name, cell):
                print(path.relative_to(ROOT))
        return 0
    verbose = "-v" in words
    crates = [Crate(folder) for folder in sorted((ROOT / "crates").iterdir()) if (folder / "src").is_dir()]
    names = [crate.name for crate in crates]
    asked = [word for word in words if word != "-v"]
    if unknown := [word for word in asked if word not in CHECKS and word not in names]:
        print(f"structure: no such check or crate: {', '.join(unknown)}\n  checks: {', '.join(CHECKS)}\n  crates: {', '.join(names)}", file=sys.stderr)
        return 2
    only = [word for word in asked if word in names]
    crates = [crate for crate in crates if not only or crate.name in only]
    bad = 0
    for check in [word for word in asked if word in CHECKS] or CHECKS:
        found = set()
        for crate, finding in CHECKS[check](crates, verbose):
            found.add(crate)
            known = crate in OPEN[check]
            bad += not known
            if not known or verbose:
                print(f"{check}: {finding}{' (known)' if known else ''}")
        for crate in crates:
            if crate.name in OPEN[check] and crate.name not in found:
                print(f"{check}: crates/{crate.name} has no finding any more: take it out of OPEN")
                bad += 1
    print(f"structure: {bad or 'no'} new finding{'s' * (bad != 1)}")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
