# The C types of publishes.py, for the compiler alone.
cimport cython

from penstock.channels.encoded cimport Encoded, ClientFrames
from penstock.wire.buffers cimport Bytes, Numbers

cdef Py_ssize_t _PIECE


@cython.final
cdef class NewMessages:
    cdef readonly Py_ssize_t count
    cdef list contents
    cdef Numbers starts
    cdef Numbers ends
    cdef Numbers places
    cdef readonly dict more

    cdef int put(self, bytes content, Py_ssize_t start, Py_ssize_t end, Py_ssize_t place) except -1
    cpdef Py_ssize_t place(self, Py_ssize_t number)


@cython.locals(
    encoded=Encoded, size=Py_ssize_t, ahead=Py_ssize_t, place=Py_ssize_t, reply=bytes, time="long long", more=tuple, start=Py_ssize_t,
)
cpdef list encode_new(
    NewMessages messages, Py_ssize_t first, Py_ssize_t end, bytes field, long long sequence, long long now,
    long long stamp
)


@cython.final
cdef class Words:
    cdef bytes time
    cdef bytes size
    cdef bytes expected


@cython.locals(
    out=Bytes, head=Bytes, number=Py_ssize_t, place=Py_ssize_t, piece=Encoded, before="long long", row=Py_ssize_t,
    start=Py_ssize_t, stop=Py_ssize_t, more=tuple,
)
cpdef bytes write_new(
    NewMessages messages, Py_ssize_t first, Py_ssize_t end, list encoded, Words words, bytes subject, bytes reply,
    long long expected, long long so_far, bytes each, bytes mark, bytes commit
)


@cython.final
cdef class Publishes:
    cdef list batch
    cdef readonly Py_ssize_t size
    cdef list contents
    cdef Numbers guids
    cdef readonly dict errors
    cdef readonly dict channels
    # Where the fields of the message at hand stand.
    cdef Py_ssize_t client
    cdef Py_ssize_t client_end
    cdef Py_ssize_t guid
    cdef Py_ssize_t guid_end
    cdef Py_ssize_t subject
    cdef Py_ssize_t subject_end
    cdef Py_ssize_t reply
    cdef Py_ssize_t reply_end
    cdef Py_ssize_t data
    cdef Py_ssize_t data_end
    cdef Py_ssize_t conn
    cdef Py_ssize_t conn_end

    @cython.locals(
        client=bytes, conn=bytes, channel=bytes, messages=NewMessages, place=Py_ssize_t, arrived=bytes, content=bytes,
        name=bytes, key=bytes, reply=bytes,
    )
    cpdef sort(
        self, object is_client, object is_channel, object canonical, object reply_line, Py_ssize_t most, bytes invalid,
        bytes too_large
    )
    @cython.locals(size=Py_ssize_t, data="char*")
    cdef bint same(self, bytes content, Py_ssize_t start, Py_ssize_t end, bytes other) except -1
    @cython.locals(
        place=Py_ssize_t, end=Py_ssize_t, data="const unsigned char*", tag=int, size=Py_ssize_t, shift=int,
        byte=Py_ssize_t, stop=Py_ssize_t,
    )
    cdef bint read(self, bytes content, bint known) except -1
    @cython.locals(number=Py_ssize_t)
    cpdef fail(self, NewMessages messages, bytes error)
    @cython.locals(ack=Bytes, place=Py_ssize_t, start=Py_ssize_t, end=Py_ssize_t, reply=bytes)
    cpdef write_acks(self, ClientFrames out)
