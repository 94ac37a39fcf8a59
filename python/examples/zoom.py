"""Tiles are read by three copies, made smaller by three, and summed up: ``python zoom.py local``, or on a cluster ``python zoom.py dask``."""

import sys

import numpy as np
import shunt.filters as sf


class Read(sf.Filter):
    def process(self, uow: sf.UnitOfWork) -> None:
        for tile in range(self.rank, uow.params["tiles"], self.copies):
            with self.output.reserve() as draft:
                np.frombuffer(draft, np.uint8)[:] = tile % 251


class Zoom(sf.Filter):
    def process(self, uow: sf.UnitOfWork) -> None:
        for buffer in self.input:
            self.output.write(np.frombuffer(buffer, np.uint8)[::4].copy())


class Collect(sf.Filter):
    def process(self, uow: sf.UnitOfWork) -> None:
        for buffer in self.input:
            uow.emit(int(np.frombuffer(buffer, np.uint8).sum()))


layout = sf.Layout(policy="demand-driven", buffer_size="16KiB", credits=32)
layout.chain(read=Read, zoom=Zoom, collect=Collect)

if __name__ == "__main__":
    with layout.start(copies={"read": 3, "zoom": 3}, launcher=sys.argv[1], progress=True) as group:
        unit = group.append({"tiles": 1000})
        print(sum(unit))
        print(group.statistics())
