# The C types of columns.py, for the compiler alone.
cimport cython

from penstock.wire.buffers cimport Lines, Numbers, Strings


cdef Py_ssize_t _MAX_LINE, _MAX_TEXT, _FEW_LINES, _MOST_KNOWN
cdef int _NEED, _OTHER, _FULL, _BEYOND, _DISORDER, _SKIPPED


cdef class Columns:
    cdef public long long sid
    cdef public long long next
    cdef public long long end
    cdef public long long count
    cdef public long long gap
    cdef public int stop
    cdef public bint direct
    cdef public bint strict
    cdef bytes stream
    cdef public Py_ssize_t rows
    cdef public long long size
    cdef public long long wire_size
    cdef bint with_headers
    cdef Py_ssize_t max_rows
    cdef long long max_bytes
    cdef public Py_ssize_t max_text
    cdef Py_ssize_t max_payload
    cdef Lines lines
    cdef list spare
    cdef Strings subjects
    cdef Strings payloads
    cdef Strings names
    cdef Strings values
    cdef Numbers lists
    cdef Numbers maps
    cdef Numbers sequences
    cdef Numbers times
    # The frame at hand.
    cdef Py_ssize_t subject
    cdef Py_ssize_t subject_end
    cdef Py_ssize_t body
    cdef Py_ssize_t head
    cdef Py_ssize_t total
    cdef Py_ssize_t reply_size
    cdef readonly long long sequence
    cdef long long delivery
    cdef long long time
    # What stood behind the subject of the last delivery, up to its sequence: " <sid> $JS.ACK.<stream>.<consumer>.<tries>."
    cdef unsigned char known[256]
    cdef Py_ssize_t known_size
    cdef Py_ssize_t known_reply
    cdef long long known_sid
    cdef Py_ssize_t at_sequence

    @cython.locals(data="const unsigned char*", position=Py_ssize_t, stop=Py_ssize_t)
    cpdef Py_ssize_t fill(self, bytearray buffer, Py_ssize_t start, Py_ssize_t end) except -1
    cdef bint _is_full(self) noexcept nogil
    cdef int _row(self, const unsigned char* data, Py_ssize_t stop) except -1 nogil
    @cython.locals(
        limit=Py_ssize_t, headed=int, unfinished=bint, stop=Py_ssize_t, first=Py_ssize_t, subject_end=Py_ssize_t,
        sid_end=Py_ssize_t, reply_end=Py_ssize_t, head_end=Py_ssize_t, place=Py_ssize_t, low="unsigned char",
        size=Py_ssize_t, known=bint,
    )
    cdef int _line(self, const unsigned char* data, Py_ssize_t position, Py_ssize_t end) except -1
    @cython.locals(place=Py_ssize_t, stop=Py_ssize_t)
    cdef bint _known_line(self, const unsigned char* data, Py_ssize_t position, Py_ssize_t limit) noexcept
    @cython.locals(count=int, place=Py_ssize_t, stop=Py_ssize_t, low="unsigned char")
    cdef int _reply(self, const unsigned char* data, Py_ssize_t start, Py_ssize_t end) except -1
    @cython.locals(lines=Lines, first=Py_ssize_t, line=Py_ssize_t)
    cdef bint _transport(self, const unsigned char* data) except -1
    @cython.locals(line=Py_ssize_t, other=Py_ssize_t, begin=Py_ssize_t, stop=Py_ssize_t)
    cdef int _headers(self, const unsigned char* data) except -1 nogil
    @cython.locals(lines=Lines, line=Py_ssize_t)
    cdef int _many_headers(self, const unsigned char* data) except -1
    cdef int _value(self, const unsigned char* data, Py_ssize_t line) except -1 nogil
    cdef int _name(self, const unsigned char* data, Py_ssize_t line) except -1 nogil
