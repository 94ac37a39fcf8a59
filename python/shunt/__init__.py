"""Shunt's Python package: :mod:`shunt.filters` is DataCutter's filter streams."""

from pathlib import Path

from shunt._native import VERSION as __version__
from shunt._native import library_is_at

__all__ = ["__version__"]

# Wheels bring the library by which sockets between processes of one host go through memory; it is loaded when a group has such.
if (_library := Path(__file__).with_name("libshunt.so")).exists():
    library_is_at(str(_library))
