# The C types of encoded.py, for the compiler alone.
cimport cython

from penstock.wire.buffers cimport Bytes, Numbers

cdef Py_ssize_t _ROOM, _BESIDE


@cython.locals(out=Bytes)
cpdef bytes channel_field(bytes channel)


@cython.final
cdef class Encoded:
    cdef readonly bytes field
    cdef readonly Py_ssize_t count
    cdef readonly Py_ssize_t size
    cdef Numbers sequences
    cdef Numbers times
    cdef Numbers ends
    cdef Bytes content

    @cython.locals(out=Bytes)
    cpdef int add(
        self, long long sequence, bytes data, Py_ssize_t start, Py_ssize_t end, long long time, bytes reply
    ) except -1
    @cython.locals(before=Py_ssize_t, place=Py_ssize_t)
    cpdef int extend(self, Encoded other) except -1
    cpdef long long sequence(self, Py_ssize_t place)
    @cython.locals(low="long long", high="long long", middle="long long")
    cpdef Py_ssize_t place(self, long long sequence)
    @cython.locals(end=Py_ssize_t, stop=Py_ssize_t)
    cpdef Py_ssize_t run(self, Py_ssize_t place, Py_ssize_t most)
    cpdef Py_ssize_t start(self, Py_ssize_t place)
    @cython.locals(where=Py_ssize_t, first=Py_ssize_t, items="char*")
    cpdef object get(self, long long sequence)


@cython.locals(count=Py_ssize_t, size=Py_ssize_t, field=bytes, joined=Encoded)
cpdef Encoded join(list pieces)


@cython.final
cdef class ClientFrames:
    cdef Bytes out

    @cython.locals(out=Bytes)
    cpdef int send(self, bytes subject, bytes payload, bytes reply) except -1
    @cython.locals(out=Bytes, start=Py_ssize_t, stop=Py_ssize_t)
    cpdef Py_ssize_t deliver(
        self, Encoded encoded, Py_ssize_t place, Py_ssize_t end, bytes inbox, Py_ssize_t most
    ) except -1
    cpdef bytes take(self)


@cython.locals(
    size=Py_ssize_t, encoded=Encoded, found="long long", time="long long", start=Py_ssize_t, payload=bytes, block=bytes, where=bytes,
)
cpdef Encoded read_answers(list answers, bytes field, bytes ours, bytes reply, bytes sequence, object read)
