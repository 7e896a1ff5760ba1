"""What the parent and a worker say to each other, when one of them dies in the middle of it."""

from __future__ import annotations

import os
import pickle
import socket
import tempfile

import pytest

from zephon_mm.backends import wire


@pytest.mark.parametrize("sent", [3, 9, 20])
def test_a_message_that_was_cut_leaves_no_descriptor(sent: int) -> None:
    """A worker that is killed in the middle of a result has already handed its memory over."""
    payload = pickle.dumps(tuple(range(30)), wire.PROTOCOL)
    message = wire._HEADER.pack(len(payload), True) + payload
    ours, theirs = socket.socketpair()
    with ours, tempfile.TemporaryFile() as file:
        before = os.listdir("/proc/self/fd")
        socket.send_fds(theirs, [message[:sent]], [file.fileno()])
        theirs.close()
        with pytest.raises(EOFError):
            wire.receive(ours)
        assert len(os.listdir("/proc/self/fd")) == len(before) - 1  # theirs
