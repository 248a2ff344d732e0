"""Frames and payloads: what is sent comes out the same, and nothing else is believed."""

from __future__ import annotations

import contextlib
import socket

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from berth.errors import WireError
from berth.train.servers.protocol import (
    HEADER,
    MAX_PAYLOAD_BYTES,
    Flag,
    Header,
    Kind,
    pack,
    pack_json,
    read_header,
    read_json,
    unpack,
)
from berth.train.servers.transport import Channel, Inbox, Outbox, PayloadBuffer, make_memory, map_memory


def header_of(**changes):
    facts = {"kind": Kind.PULL, "flags": Flag.RETRY, "step": 7, "checksum": 1, "request": 2**40}
    facts |= {"length": 100, "ring_offset": 2**50, "released": 3} | changes
    return Header(**facts)


def test_a_header_comes_out_as_it_went_in():
    assert read_header(header_of().pack(), MAX_PAYLOAD_BYTES) == header_of()


@pytest.mark.parametrize(
    ("at", "byte", "message"),
    [
        (0, 0, "not a berth frame"),
        (4, 9, "version 9"),
        (5, 200, "unknown frame type 200"),
        (29, 255, "exceeds the limit"),
    ],
)
def test_a_header_that_berth_would_not_send_is_refused(at, byte, message):
    raw = bytearray(header_of(request=0).pack())
    raw[at] = byte
    with pytest.raises(WireError, match=message):
        read_header(raw, MAX_PAYLOAD_BYTES)


def test_arrays_come_out_as_they_went_in():
    arrays = [
        np.arange(5, dtype=np.int64),
        np.ones((3, 4), np.float32),
        np.empty((0, 7), np.uint16),
        np.array([2**32 - 1], np.uint32),
        pack_json({"a": [1.5, "é"]}),
    ]
    found = unpack(pack(arrays))
    assert [array.dtype for array in found] == [array.dtype for array in arrays]
    assert [array.shape for array in found] == [array.shape for array in arrays]
    assert all((one == other).all() for one, other in zip(found, arrays, strict=True))
    assert read_json(found[-1]) == {"a": [1.5, "é"]}


@given(st.binary(max_size=300))
def test_random_bytes_are_arrays_or_refused_but_nothing_else(data):
    with contextlib.suppress(WireError):
        unpack(np.frombuffer(bytearray(data), np.uint8))


@given(st.integers(0, 200), st.integers(0, 255))
def test_a_payload_with_one_wrong_byte_never_reaches_beyond_itself(at, byte):
    payload = pack([np.arange(9, dtype=np.int64), np.ones((2, 3), np.float32)])
    payload[at] = byte
    with contextlib.suppress(WireError):
        assert sum(array.nbytes for array in unpack(payload)) <= len(payload)


def pair(**config):
    one, other = socket.socketpair()
    channels = Channel(one, **config), Channel(other, **config)
    for channel in channels:
        channel.max_bytes = MAX_PAYLOAD_BYTES
    return channels


def test_frames_arrive_whole_and_in_order_however_they_are_cut():
    mine, theirs = pair(checked=True)
    payloads = [np.random.default_rng(size).bytes(size) for size in (0, 1, 70_000, 3_000_000, 5)]
    for number, data in enumerate(payloads):
        mine.send(Kind.PUSH, number, PayloadBuffer(np.frombuffer(bytearray(data), np.uint8)), step=number)
    found = []
    while len(found) < len(payloads):
        found += theirs.receive()
        mine.flush()
    assert [frame.payload.tobytes() for frame in found] == payloads
    assert [frame.request for frame in found] == [0, 1, 2, 3, 4]
    mine.close()
    theirs.close()


def test_a_damaged_payload_is_noticed():
    mine, theirs = pair()
    header = header_of(flags=Flag.CHECKED, checksum=12345, length=3)
    mine.socket.send(header.pack() + b"abc")
    with pytest.raises(WireError, match="checksum mismatch"):
        theirs.receive()
    mine.close()
    theirs.close()


def test_a_payload_in_shared_memory_that_is_not_attached_is_an_error():
    mine, theirs = pair()
    mine.socket.send(header_of(flags=Flag.IN_RING).pack())
    with pytest.raises(WireError, match="shared memory"):
        theirs.receive()
    mine.close()
    theirs.close()


def test_half_a_header_waits_for_the_rest():
    mine, theirs = pair()
    raw = header_of(length=0, flags=Flag.NONE).pack()
    mine.socket.send(raw[:20])
    assert theirs.receive() == []
    mine.socket.send(raw[20:])
    assert len(theirs.receive()) == 1
    mine.close()
    theirs.close()


def test_payloads_go_through_shared_memory_and_its_places_are_used_again():
    mine, theirs = pair()
    one, other = map_memory(make_memory(1 << 16))
    mine.attach(one, other)
    theirs.attach(other, one)
    for number in range(50):
        buffer = mine.reserve(40_000)
        assert buffer.ring_offset is not None
        buffer.payload[:] = number
        mine.send(Kind.PUSH, number, buffer)
        (frame,) = theirs.receive()
        assert (frame.payload == number).all()
        theirs.release(frame)
        theirs.send(Kind.DONE, number)
        mine.receive()
    mine.close()
    theirs.close()


def test_what_does_not_fit_the_ring_goes_through_the_socket():
    mine, theirs = pair()
    one, other = map_memory(make_memory(1 << 16))
    mine.attach(one, other)
    theirs.attach(other, one)
    rooms = [mine.reserve(40_000), mine.reserve(40_000)]
    assert [buffer.ring_offset is None for buffer in rooms] == [False, True]
    for number, buffer in enumerate(rooms):
        buffer.payload[:] = number
        mine.send(Kind.PUSH, number, buffer)
    assert [int(frame.payload[0]) for frame in theirs.receive()] == [0, 1]
    mine.close()
    theirs.close()


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(1, 3000), st.booleans()), max_size=60))
def test_no_place_of_the_ring_is_given_out_twice(deeds):
    memory = np.zeros(8192, np.uint8)
    outbox, inbox, alive = Outbox(memory), Inbox(memory), []
    for number, (length, is_read_first) in enumerate(deeds):
        if is_read_first and alive:
            end, view, mark = alive.pop(0)
            assert (view == mark).all()
            inbox.release(end)
            outbox.free(inbox.released)
        taken = outbox.take(length)
        if taken is not None:
            ring_offset, buffer = taken
            buffer[:] = number % 251
            view, end = inbox.read(ring_offset, length)
            alive.append((end, view, number % 251))
    assert all((view == mark).all() for _, view, mark in alive)


@pytest.mark.parametrize(("ring_offset", "length"), [(8190, 10), (2**63, 9000)])
def test_a_place_outside_the_ring_is_refused(ring_offset, length):
    with pytest.raises(WireError):
        Inbox(np.zeros(8192, np.uint8)).read(ring_offset, length)


def test_more_read_than_was_sent_is_refused():
    with pytest.raises(WireError):
        Outbox(np.zeros(8192, np.uint8)).free(64)


def test_a_header_has_48_bytes():
    assert HEADER.size == 48
