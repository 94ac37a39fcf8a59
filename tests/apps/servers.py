"""Servers and clients of Python's standard library, one of each kind that people write.

    servers.py KIND PORT       serves; KIND: asyncio, forking, threading, selectors, http, wsgi is gunicorn's (`servers:application`)
    servers.py ask-KIND PORT   drives a server of any line-echo kind and prints what it got; ask-KIND: ask-blocking, ask-asyncio
"""

import asyncio
import hashlib
import http.server
import selectors
import socket
import socketserver
import sys


async def echo_stream(reader, writer):
    while line := await reader.readline():
        if line == b"big\n":
            size = int(await reader.readline())
            line = await reader.readexactly(size)
        writer.write(line)
        await writer.drain()
    writer.close()


async def serve_asyncio(port):
    server = await asyncio.start_server(echo_stream, "127.0.0.1", port, limit=1 << 20)
    await server.serve_forever()


class EchoLines(socketserver.StreamRequestHandler):
    def handle(self):
        while line := self.rfile.readline():
            if line == b"big\n":
                line = self.rfile.read(int(self.rfile.readline()))
            self.wfile.write(line)


class Forking(socketserver.ForkingTCPServer):
    allow_reuse_address = True


class Threading(socketserver.ThreadingTCPServer):
    allow_reuse_address = daemon_threads = True


def serve_selectors(port):
    """Raw, non-blocking, with the default selector (epoll). Only echoes, so the `big` header goes back too: not used with it."""
    selector, listener = selectors.DefaultSelector(), socket.create_server(("127.0.0.1", port))
    listener.setblocking(False)
    selector.register(listener, selectors.EVENT_READ)
    pending = {}
    while True:
        for key, events in selector.select():
            s = key.fileobj
            if s is listener:
                connection, _ = listener.accept()
                connection.setblocking(False)
                pending[connection] = b""
                selector.register(connection, selectors.EVENT_READ)
                continue
            if events & selectors.EVENT_READ:
                data = s.recv(4096)
                if not data and not pending[s]:
                    selector.unregister(s)
                    del pending[s]
                    s.close()
                    continue
                pending[s] += data
            if pending[s]:
                try:
                    pending[s] = pending[s][s.send(pending[s]):]
                except BlockingIOError:
                    pass
            selector.modify(s, selectors.EVENT_READ | (selectors.EVENT_WRITE if pending[s] else 0))


class Http(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.answer(self.rfile.read(int(self.headers["Content-Length"])))

    def do_GET(self):
        self.answer(self.path.encode() * 100)

    def answer(self, body):
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def application(environ, start_response):
    """For gunicorn: echoes the body, or says the path."""
    body = environ["wsgi.input"].read() or environ["PATH_INFO"].encode() * 50
    start_response("200 OK", [("Content-Length", str(len(body))), ("Content-Type", "text/plain")])
    return [body]


def big(i):
    return hashlib.sha256(b"%d" % i).digest() * (1 + i * 1000)


def ask_blocking(port):
    digest = hashlib.sha1()
    connections = [socket.create_connection(("127.0.0.1", port)) for _ in range(4)]
    files = [c.makefile("rwb") for c in connections]
    for i in range(1500):
        f = files[i % 4]
        f.write(b"line %d %s\n" % (i, b"z" * (i % 90)))
        f.flush()
        digest.update(f.readline())
    if sys.argv[1] != "ask-lines":
        for i in range(8):
            f = files[i % 4]
            f.write(b"big\n%d\n" % len(big(i)) + big(i))
            f.flush()
            back = f.read(len(big(i)))
            assert back == big(i), i
            digest.update(back)
    for c, f in zip(connections, files):
        c.shutdown(socket.SHUT_WR)
        assert f.read() == b""
    print("blocking", digest.hexdigest())


async def ask_asyncio(port):
    async def one(number):
        digest = hashlib.sha1()
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
        for i in range(200):
            writer.write(b"line %d of %d\n" % (i, number))
            digest.update(await reader.readline())
        data = big(number)
        writer.write(b"big\n%d\n" % len(data) + data)
        await writer.drain()
        assert await reader.readexactly(len(data)) == data
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()
        return digest.hexdigest()

    print("\n".join(await asyncio.gather(*(one(i) for i in range(12)))))


if __name__ == "__main__":
    kind, number = sys.argv[1], int(sys.argv[2])
    address = ("127.0.0.1", number)
    if kind == "asyncio":
        asyncio.run(serve_asyncio(number))
    elif kind == "forking":
        Forking(address, EchoLines).serve_forever()
    elif kind == "threading":
        Threading(address, EchoLines).serve_forever()
    elif kind == "selectors":
        serve_selectors(number)
    elif kind == "http":
        http.server.HTTPServer(address, Http).serve_forever()
    elif kind == "http-threading":
        http.server.ThreadingHTTPServer(address, Http).serve_forever()
    elif kind in ("ask-blocking", "ask-lines"):
        ask_blocking(number)
    elif kind == "ask-asyncio":
        asyncio.run(ask_asyncio(number))
    else:
        sys.exit(f"unknown kind {kind}")
