"""The file into which the library counts what it does (SHUNT_REPORT), so that a test knows that acceleration really happened.

4096 bytes of little-endian 64-bit numbers. Whoever makes the file writes the magic; every process under test maps it and adds.
"""

import struct

MAGIC = 0x5348525400000001
FIELDS = {"tracked": 1, "promoted": 2, "ring_sent": 3, "ring_received": 4, "wakes": 5, "demoted": 6, "processes": 7}
REASONS = range(16, 80)


class Report:
    def __init__(self, path):
        self.path = path
        path.write_bytes(struct.pack("<Q", MAGIC).ljust(4096, b"\0"))
        path.chmod(0o666)  # programs that change their user count too

    def words(self):
        return struct.unpack("<512Q", self.path.read_bytes())

    def __getattr__(self, name):
        if name in FIELDS:
            return self.words()[FIELDS[name]]
        raise AttributeError(name)

    def reasons(self):
        """Why connections are on TCP: {code: count}."""
        words = self.words()
        return {code - 16: words[code] for code in REASONS if words[code]}

    def __str__(self):
        words = self.words()
        return " ".join(f"{name}={words[at]}" for name, at in FIELDS.items()) + f" reasons={self.reasons()}"

    __repr__ = __str__
