"""Shunt's Python package: :mod:`shunt.filters` is DataCutter's filter streams."""

from shunt._native import VERSION as __version__

__all__ = ["__version__"]
