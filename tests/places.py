"""Places of the source, each named by what stands there, and what stands there instead: for tests that change one on purpose. Any white
space in the source matches a space.
"""

import re
from pathlib import Path


def find(crates: Path, file: str, old: str):
    """Where `old` is in a file below `crates`: the file's text, and a match for each place."""
    path = crates / file
    text = path.read_text() if path.exists() else ""
    return text, list(re.finditer(r"\s+".join(map(re.escape, old.split())), text))


def change(crates: Path, entry):
    """Changes the one place that an entry of a table names."""
    text, places = find(crates, entry.file, entry.old)
    assert len(places) == 1
    (crates / entry.file).write_text(text[:places[0].start()] + entry.new + text[places[0].end():])


def lost(crates: Path, table):
    """What is wrong with a table, a line each: places that are not found in the sources at `crates`, or more than once."""
    for name, entry in table.items():
        count = len(find(crates, entry.file, entry.old)[1])
        if count != 1:
            yield f"{name}: {entry.file} has this {count} times, and must have it once: {entry.old}"
