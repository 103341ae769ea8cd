# The C types of dispatch.py, for the compiler alone.
cimport cython

from penstock.wire.buffers cimport Bytes

cdef Py_ssize_t _MAX_LINE, _LARGEST, _ROOM, _ROOMY


@cython.locals(
    data="const unsigned char*", place=Py_ssize_t, limit=Py_ssize_t, stop=Py_ssize_t, headed=Py_ssize_t,
    first=Py_ssize_t, subject_end=Py_ssize_t, sid_end=Py_ssize_t, third_end=Py_ssize_t, fourth_end=Py_ssize_t,
    reply=Py_ssize_t, reply_end=Py_ssize_t, head=Py_ssize_t, total=Py_ssize_t, sid="long long",
    body=Py_ssize_t, tail=Py_ssize_t, count=Py_ssize_t,
)
cpdef tuple hand_out(bytearray buffer, Py_ssize_t start, Py_ssize_t end, dict takers, dict borrowers)


cdef class Reading:
    cdef public object session
    cdef public long long messages
    cdef public long long bytes
    cdef public object _parser, _opened, _held, _backlog, _ahead, _view, _viewed
    cdef public dict _takers, _borrowers
    cdef public Py_ssize_t _asked, _streak
    cdef public bint reading
    cdef public list after

    @cython.locals(parser=object)
    cpdef object get_buffer(self, Py_ssize_t sizehint)
    @cython.locals(
        parser=object, start=Py_ssize_t, end=Py_ssize_t, place=Py_ssize_t, count=Py_ssize_t, wait=object, calls=list
    )
    cpdef object buffer_updated(self, Py_ssize_t nbytes)


cdef class Outbox:
    cdef Bytes out
    cdef public dict subjects
    cdef public Py_ssize_t plain
    cdef public Py_ssize_t size
    cdef public long long messages
    cdef public long long bytes

    @cython.locals(name=bytes)
    cpdef Py_ssize_t post(self, object subject, object payload, bytes reply=*) except -2
    cpdef Py_ssize_t publish(self, bytes subject, bytes reply, bytes block, bytes payload) except -1
    @cython.locals(out=Bytes)
    cpdef Py_ssize_t begin(self, bytes subject, bytes reply, bytes block, Py_ssize_t size) except -1
    cpdef Py_ssize_t add(self, bytes frames) except -1
    cpdef object take(self)
