#!/usr/bin/env python3
"""Buffers from one Python process to another, by each of those that `shunt bench filters` compares.

    buffers.py CONTENDER [--sizes 8,16384,1048576] [--seconds 1] [--warmup 0.1]

CONTENDER: filters, filters-shunt, filters-tcp (shunt.filters in shared memory, by promoted sockets, by TCP), stream (a socket; under `shunt run`
Shunt's), zmq-tcp, zmq-ipc (PUSH and PULL), dask, ray (a call of an actor for each buffer, straight from one worker to the other, 32 of them
under way at once).

Prints a line of JSON for each size, or {"absent": WHY} where a package is not here. The producer writes each buffer's number into it and hands it over
as fast as it can; the consumer reads it: it copies it to memory of its own. The clock is the consumer's: the time from one buffer to the next
in a steady stream, as in zmq.c and in crates/bench/src/filters/meter.rs.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import sys
import time
from collections import deque
from struct import pack_into

UNDER_WAY = 32
"""Calls of actors that a producer does not wait for: as many as a stream of filters has credits."""


class Meter:
    """What a buffer takes, by the consumer's clock, which is looked at once in so many buffers."""

    def __init__(self, size: int, warmup: float, stride: int, ordered: bool = True) -> None:
        self.size, self.warmup, self.stride, self.ordered = size, warmup, stride, ordered
        self.own = memoryview(bytearray(size))
        self.count = self.at = self.before = 0
        self.begun = self.start = self.last = 0.0

    def take(self, buffer) -> None:
        self.own[:] = buffer
        self.count += 1
        if self.count % self.stride == 0 or self.count == 1:
            self.look()

    def look(self) -> None:
        now = time.perf_counter()
        if self.ordered and int.from_bytes(self.own[:8], "little") != self.count - 1:
            raise ValueError(f"buffer {self.count - 1} is wrong")
        if self.count == 1:
            self.begun = now
        if self.count % self.stride == 0:
            self.last, self.at = now, self.count
            if not self.start and now - self.begun >= self.warmup:
                self.start, self.before = now, self.count

    def result(self) -> dict:
        if not self.start or self.at == self.before:
            raise ValueError("nothing came in the time that was measured")
        ns = (self.last - self.start) / (self.at - self.before) * 1e9
        return {"size": self.size, "buffers": self.at - self.before, "ns_per_buffer": ns, "bytes_per_second": self.size * 1e9 / ns}


def how_often(size: int) -> int:
    """In how many buffers a clock is looked at that costs as much as a small one."""
    return max(1, min(65536 // size, 256))


def produce(size: int, seconds: float, send, stride: int) -> None:
    """Sends numbered buffers until the time is over."""
    buffer, count, each = bytearray(b"Z" * size), 0, range(stride)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for _ in each:
            pack_into("<Q", buffer, 0, count)
            send(buffer)
            count += 1


# ---- two processes of ours, joined by something ----


def forked(produce_at, consume) -> dict:
    """`consume(ready)` in this process; `produce_at(what ready was given, until)` in a child, which goes when `until()` returns."""
    there, here = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(here)
            at = os.read(there, 256)
            produce_at(at.decode(), lambda: os.read(there, 1))
            os._exit(0)
        except BaseException as error:
            print(f"producer: {error!r}", file=sys.stderr)
            os._exit(1)
    os.close(there)
    result = consume(lambda at: os.write(here, at.encode()))
    os.close(here)
    if os.waitpid(child, 0)[1] != 0:
        raise RuntimeError("the producer has failed")
    return result


def stream(size: int, seconds: float, warmup: float) -> dict:
    def produce_at(port: str, until) -> None:
        with socket.create_connection(("127.0.0.1", int(port))) as out:
            produce(size, warmup + seconds, out.sendall, how_often(size))
            out.shutdown(socket.SHUT_WR)
            until()

    def consume(ready) -> dict:
        with socket.create_server(("127.0.0.1", 0)) as server:
            ready(str(server.getsockname()[1]))
            conn, _ = server.accept()
        meter, buffer = Meter(size, warmup, how_often(size)), memoryview(bytearray(size))
        with conn:
            while True:
                got = 0
                while got < size:
                    n = conn.recv_into(buffer[got:] if got else buffer)
                    if n == 0:
                        return meter.result()
                    got += n
                meter.take(buffer)

    return forked(produce_at, consume)


def zeromq(way: str):
    import zmq

    def endpoint(context, kind, size: int):
        out = context.socket(kind)
        # Lest a gigabyte be under way.
        out.set_hwm(1000 if size < 65536 else UNDER_WAY)
        return out

    def one(size: int, seconds: float, warmup: float) -> dict:
        def produce_at(at: str, until) -> None:
            context = zmq.Context()
            out = endpoint(context, zmq.PUSH, size)
            out.connect(at)
            produce(size, warmup + seconds, out.send, how_often(size))
            out.send(b"")
            until()
            out.close()
            context.term()

        def consume(ready) -> dict:
            context = zmq.Context()
            into = endpoint(context, zmq.PULL, size)
            if way == "tcp":
                at = f"tcp://127.0.0.1:{into.bind_to_random_port('tcp://127.0.0.1')}"
            else:
                at = f"ipc://@shunt-bench-zmq-{os.getpid()}"
                into.bind(at)
            ready(at)
            meter, take = Meter(size, warmup, how_often(size)), into.recv
            if size < zmq.COPY_THRESHOLD:
                while buffer := take():
                    meter.take(buffer)
            else:
                while len(buffer := take(copy=False).buffer):
                    meter.take(buffer)
            into.close()
            return meter.result()

        return forked(produce_at, consume)

    return one


# ---- those that have processes of their own ----


def filters(transport: str):
    import shunt.filters as sf

    class Source(sf.Filter):
        def process(self, uow) -> None:
            size, seconds = uow.params
            produce(size, seconds, self.output.write, how_often(size))

    class Sink(sf.Filter):
        def __init__(self, size: int, warmup: float) -> None:
            self.meter = Meter(size, warmup, how_often(size))

        def process(self, uow) -> None:
            take = self.meter.take
            for buffer in self.input:
                take(buffer)
            uow.emit(self.meter.result())

    def one(size: int, seconds: float, warmup: float) -> dict:
        layout = sf.Layout(buffer_size=size).filter("source", Source).filter("sink", Sink, size, warmup).stream("source", "sink")
        own = sf.Place(processes=True, on=["caller"])
        with layout.start({"source": own, "sink": own}, transport=transport) as group:
            (result,) = group.append((size, warmup + seconds)).result()
            (way,) = {figures.way for figures in group.statistics().figures}
        if way != ("memory" if transport == "auto" else transport):
            raise RuntimeError(f"buffers went by {way}, not by {transport}")
        return result

    return one


class Consumer:
    """An actor."""

    def begin(self, size: int, warmup: float, ordered: bool) -> bool:
        self.meter = Meter(size, warmup, 1, ordered)
        return True

    def take(self, buffer) -> None:
        self.meter.take(buffer)

    def result(self) -> dict:
        return self.meter.result()


class Producer:
    """An actor that calls another; `call(consumer, buffer)` gives what can be waited for."""

    def run(self, consumer, size: int, seconds: float, call, wait) -> None:
        under_way: deque = deque()

        def send(buffer: bytearray) -> None:
            # A buffer that is sent later must not change meanwhile.
            under_way.append(call(consumer, bytes(buffer)))
            if len(under_way) >= UNDER_WAY:
                wait(under_way.popleft())

        produce(size, seconds, send, 1)
        for each in under_way:
            wait(each)


def dask():
    import dask
    from distributed import Client, LocalCluster

    dask.config.set({"distributed.worker.daemon": True, "distributed.admin.tick.limit": "60s"})
    cluster = LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None, silence_logs=40)
    client = Client(cluster)
    ones = [worker for worker in client.scheduler_info()["workers"]]

    def one(size: int, seconds: float, warmup: float) -> dict:
        producer = client.submit(Producer, actor=True, workers=ones[0], pure=False).result()
        consumer = client.submit(Consumer, actor=True, workers=ones[1], pure=False).result()
        # Calls of an actor may overtake one another.
        consumer.begin(size, warmup, False).result()
        call, wait = lambda consumer, buffer: consumer.take(buffer), lambda future: future.result()
        producer.run(consumer, size, warmup + seconds, call, wait).result()
        return consumer.result().result()

    return one, lambda: (client.close(), cluster.close())


def ray_():
    import logging

    os.environ.setdefault("RAY_DEDUP_LOGS", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    ray.init(num_cpus=2, include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False, object_store_memory=256 << 20)
    makes = [ray.remote(cls) for cls in (Producer, Consumer)]

    def one(size: int, seconds: float, warmup: float) -> dict:
        producer, consumer = (make.remote() for make in makes)
        ray.get(consumer.begin.remote(size, warmup, True))
        call = lambda consumer, buffer: consumer.take.remote(buffer)
        ray.get(producer.run.remote(consumer, size, warmup + seconds, call, ray.get))
        return ray.get(consumer.result.remote())

    return one, ray.shutdown


CONTENDERS = {
    "filters": lambda: filters("auto"),
    "filters-shunt": lambda: filters("shunt"),
    "filters-tcp": lambda: filters("tcp"),
    "stream": lambda: stream,
    "zmq-tcp": lambda: zeromq("tcp"),
    "zmq-ipc": lambda: zeromq("ipc"),
    "dask": dask,
    "ray": ray_,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("contender", choices=CONTENDERS)
    parser.add_argument("--sizes", default="8,16384,1048576")
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--warmup", type=float, default=0.1)
    args = parser.parse_args()
    # So that processes of others are ended by those who started them.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        made = CONTENDERS[args.contender]()
    except ImportError as error:
        print(json.dumps({"absent": str(error)}), flush=True)
        return 0
    one, close = made if isinstance(made, tuple) else (made, lambda: None)
    try:
        for size in map(int, args.sizes.split(",")):
            print(json.dumps(one(size, args.seconds, args.warmup)), flush=True)
    finally:
        close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
