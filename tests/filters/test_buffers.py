"""Buffers in the hands of programs, and where they go."""


import numpy as np
import pytest
import shunt.filters as sf

from harness.ether import PATIENCE
from harness.filters import Give, Keys, Line, Numbers, Sum, number, packed
from harness.groups import apart, given_by, row


def test_numpy_reads_in_place_and_only_reads(launcher):
    def give(self, uow):
        self.output.write(np.arange(16, dtype=np.int32))

    def take(buffer):
        array = np.frombuffer(buffer, np.int32)
        again = np.frombuffer(buffer, np.int32)
        refused = False
        try:
            array[0] = 1
        except ValueError:
            refused = True
        view = memoryview(buffer)
        return array.sum(), array.flags.owndata, array.ctypes.data == again.ctypes.data, refused, view.readonly, view.nbytes, len(buffer)

    with given_by(give, take).start(apart(give=1) if launcher == "local" else None, launcher=launcher) as group:
        assert group.append().result(30 * PATIENCE) == [(120, False, True, True, True, 64, 64)]


def test_what_is_released_cannot_be_read_and_what_is_viewed_cannot_be_released():
    def take(buffer):
        said = []
        view = memoryview(buffer)
        array = np.frombuffer(buffer, np.uint8)
        for step in (buffer.release, view.release, buffer.release, lambda: None):
            try:
                step()
                said.append(buffer.released)
            except BufferError as error:
                said.append(str(error))
            if step == view.release:
                del array
        for use in (bytes, memoryview, lambda it: it.note, np.frombuffer):
            try:
                use(buffer)
                said.append("read")
            except ValueError as error:
                said.append(str(error))
        with pytest.raises(ValueError):
            buffer.tobytes()
        return said, "released" in repr(buffer)

    with given_by(lambda self, uow: self.output.write(b"abc"), take).start() as group:
        [(said, shown)] = group.append().result(30 * PATIENCE)
    assert said[0].startswith("2 views of this buffer are alive") and said[1:4] == [False, True, True]
    assert said[4:] == ["this buffer was released: its memory holds something else by now"] * 4 and shown


def test_a_draft_is_filled_in_place_and_given_back_by_an_exception():
    def give(self, uow):
        for number in range(20):  # more than there are credits and slots: those given back are free again
            try:
                with self.output.reserve() as draft:
                    assert len(draft) == 64 and not memoryview(draft).readonly
                    memoryview(draft)[:3] = b"bad"
                    raise KeyError(number)
            except KeyError:
                pass
        with self.output.reserve() as draft:
            np.frombuffer(draft, np.uint8)[:] = 7
            draft.length, draft.key, draft.note = 10, 5, b"with it"
        draft = self.output.reserve()
        view = memoryview(draft)
        view[:4] = b"late"
        draft.length = 4
        try:
            draft.send()
        except BufferError as error:
            assert "1 views of this buffer are alive" in str(error)
        view.release()
        draft.send()
        for use in (draft.send, draft.discard, lambda: memoryview(draft)):
            with pytest.raises(ValueError, match="was sent"):
                use()
        self.output.reserve().discard()

    with given_by(give, lambda it: (bytes(it), it.key, it.note, it.producer)).start() as group:
        assert group.append().result(30 * PATIENCE) == [(b"\7" * 10, 5, b"with it", 0), (b"late", 0, b"", 0)]


def test_what_may_be_written():
    def give(self, uow):
        for data in (b"ab", bytearray(b"cd"), memoryview(b"xefx")[1:3], np.array([[1, 2], [3, 4]], np.uint16), b""):
            self.output.write(data)
        for data, kind in (("text", TypeError), (np.zeros((4, 4), np.uint8)[:, ::2], (ValueError, BufferError)), (b"x" * 65, ValueError)):
            with pytest.raises(kind):
                self.output.write(data)
        with pytest.raises(ValueError, match="note"):
            self.output.write(b"", note=b"n" * (sf.NOTE_MOST + 1))

    with given_by(give).start() as group:
        assert group.append().result(30 * PATIENCE) == [b"ab", b"cd", b"ef", b"\1\0\2\0\3\0\4\0", b""]


def test_a_write_of_more_than_a_buffer_is_refused_or_split(launcher):
    give = lambda self, uow: self.output.write(bytes(range(150)), key=3, note=b"n")
    take = lambda it: (len(it), it.more, it.key, bytes(it))
    with given_by(give, take).start(launcher=launcher) as group:
        with pytest.raises(sf.FilterFailed, match="ValueError: .*a write of 150 bytes does not fit into a buffer of 64.*split"):
            group.append().result(30 * PATIENCE)
    with given_by(give, take, split=True).start(launcher=launcher) as group:
        parts = group.append().result(30 * PATIENCE)
    assert [part[:3] for part in parts] == [(64, True, 3), (64, True, 3), (22, False, 3)]
    assert b"".join(part[3] for part in parts) == bytes(range(150))


def test_buffers_may_be_kept():
    def give(self, uow):
        for number in range(100):
            self.output.write(packed(number))

    class Keep(sf.Filter):
        def process(self, uow):
            uow.emit(sum(number(buffer) for buffer in list(self.input)))

    for placement, transport in ((None, "auto"), (apart(give=1), "auto"), (apart(give=1), "tcp")):
        layout = sf.Layout(buffer_size=64, credits=4).filter("give", Give, give).filter("keep", Keep).stream("give", "keep")
        with layout.start(placement, transport=transport) as group:
            assert group.append().result(30 * PATIENCE) == [4950]

def test_keys_go_to_the_same_copy(launcher):
    with row("keyed", numbers=Numbers, keys=Keys).start(copies={"numbers": 3, "keys": 3}, launcher=launcher) as group:
        seen = group.append(100).result(30 * PATIENCE)
    assert sorted(key for _, keys, _ in seen for key in keys) == [0, 1, 2, 3, 4]
    assert sum(count for *_, count in seen) == 100


def test_weights_share_out():
    layout = sf.Layout(policy="weighted").filter("numbers", Numbers).filter("keys", Keys)
    layout.stream("numbers", "keys", weights=[3, 0, 1])
    with layout.start(copies={"keys": 3}) as group:
        seen = group.append(400).result(30 * PATIENCE)
    assert {rank: count for rank, _, count in seen} == {0: 300, 1: 0, 2: 100}


def test_a_function_chooses(launcher):
    def choose(meta, unacknowledged):
        assert meta.length == 8 and meta.note == b"" and len(unacknowledged) == 2
        return meta.key % 2

    with row(choose, numbers=Numbers, keys=Keys).start(copies={"keys": 2}, launcher=launcher) as group:
        seen = group.append(100).result(30 * PATIENCE)
    assert {rank: keys for rank, keys, _ in seen} == {0: [0, 2, 4], 1: [1, 3]}


def test_what_a_function_may_choose():
    with row(lambda meta, unacknowledged: 7, numbers=Numbers, sum=Sum).start() as group:
        with pytest.raises(sf.FilterFailed, match="7"):
            group.append(3).result(30 * PATIENCE)
    with row(lambda meta, unacknowledged: 1 // 0, numbers=Numbers, sum=Sum).start() as group:
        with pytest.raises(sf.FilterFailed, match="ZeroDivisionError"):
            group.append(3).result(30 * PATIENCE)


def test_several_inputs_are_read_one_by_one():
    class Join(sf.Filter):
        def process(self, uow):
            left, right = (list(map(number, self.inputs[name])) for name in ("left", "right"))
            assert self.inputs["left"].read() is None
            uow.emit((left, right))

    layout = sf.Layout(buffer_size=8, credits=64)
    layout.filter("numbers", Numbers).filter("line", Line, 10, 1).filter("join", Join)
    layout.stream("numbers", "join", name="left").stream("numbers", "line").stream("line", "join", name="right")
    with layout.start() as group:
        assert group.append(4).result(30 * PATIENCE) == [([0, 1, 2, 3], [1, 11, 21, 31])]
