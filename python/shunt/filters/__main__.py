"""``python -m shunt.filters``: draws layouts."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from shunt import __version__
from shunt.filters import _draw
from shunt.filters._layout import Layout, Place


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="shunt filters", description="Filter groups: what connects to what, and what runs where.")
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(title="commands", dest="command", required=True)
    graph = commands.add_parser(
        "graph",
        help="draw a layout with its placement",
        description="Draws a layout with its placement. The program is imported, not run: keep what starts a group under "
        "'if __name__ == \"__main__\":'.",
        epilog="examples:\n  shunt filters graph zoom.py -o zoom.svg\n  shunt filters graph mine.program:layout --copies read=3 zoom=3 --hosts a b --format text",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    graph.add_argument("program", metavar="PROGRAM[:NAME]", help="a file or a module, and the name of the layout in it (default: layout)")
    graph.add_argument("--placement", metavar="NAME", help="the name of a placement in the program, as Layout.start takes it")
    graph.add_argument("--copies", metavar="FILTER=N", nargs="+", default=[], help="how many copies of a filter there are")
    graph.add_argument("--hosts", metavar="HOST", nargs="+", default=[], help="the hosts that a launcher would have")
    graph.add_argument("--format", choices=("svg", "dot", "text"), help="default: by the name of the output, else svg")
    graph.add_argument("-o", "--output", metavar="FILE", help="where to write it (default: the terminal)")
    it = parser.parse_args(arguments)
    try:
        return draw(it)
    except (ValueError, ImportError, OSError, AttributeError) as error:
        print(f"shunt filters graph: {error}", file=sys.stderr)
        return 1


def draw(it: argparse.Namespace) -> int:
    module, name = load(it.program)
    layout = getattr(module, name, None)
    if not isinstance(layout, Layout):
        there = [key for key, value in vars(module).items() if isinstance(value, Layout)]
        hint = f" (there is {', '.join(there)})" if there else ""
        raise ValueError(f"{it.program} has no layout named '{name}'{hint}")
    places: dict[str, Place] = {}
    if it.placement:
        for key, place in getattr(module, it.placement).items():
            places[key] = Place(place) if isinstance(place, int) else place
    for text in it.copies:
        key, _, count = text.partition("=")
        if not count.isdigit():
            raise ValueError(f"--copies takes FILTER=N, not '{text}'")
        places.setdefault(key, Place()).copies = int(count)
    drawing = _draw.Drawing(layout, places, it.hosts)
    kind = it.format or (Path(it.output).suffix.lstrip(".") if it.output else "svg")
    make = {"svg": drawing.svg, "dot": drawing.dot, "gv": drawing.dot, "text": drawing.text, "txt": drawing.text}.get(kind)
    if make is None:
        raise ValueError(f"'{kind}' is no format: svg, dot, text")
    if it.output:
        Path(it.output).write_text(make(), encoding="utf-8")
    else:
        print(make(), end="")
    return 0


def load(program: str) -> tuple[ModuleType, str]:
    """Imports a file or a module; the name of the layout in it."""
    path, _, name = program.rpartition(":")
    if not path:
        path, name = program, "layout"
    if path.endswith(".py"):
        spec = importlib.util.spec_from_file_location(Path(path).stem, path)
        if spec is None or spec.loader is None or not Path(path).exists():
            raise OSError(f"there is no file {path}")
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        sys.path.insert(0, str(Path(path).parent))
        spec.loader.exec_module(module)
        return module, name
    sys.path.insert(0, "")
    return importlib.import_module(path), name


if __name__ == "__main__":
    sys.exit(main())
