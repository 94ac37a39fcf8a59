"""What is sent to and fro: files of random bytes, the same in each run, and their checksums."""

import hashlib
import random


def payload(path, size):
    """A file of `size` bytes; returns its checksum."""
    path.write_bytes(random.Random(size).randbytes(size))
    return checksum(path)


def checksum(what):
    """Of a file, or of bytes."""
    return hashlib.sha1(what if isinstance(what, bytes) else what.read_bytes()).hexdigest()
