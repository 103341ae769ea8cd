# The C types of frames.py, for the compiler alone.
cimport cython

from penstock.wire.buffers cimport Bytes

cdef extern from *:
    """
    /* Tell whether a subject is tokens of printable ASCII without wildcards; no branch for a byte, so that several go at once. */
    static inline int penstock_is_plain(const unsigned char *data, Py_ssize_t start, Py_ssize_t end) {
        int bad;
        if (start >= end) return 0;
        bad = (data[start] == '.') | (data[end - 1] == '.');
        for (Py_ssize_t place = start; place < end; place++) {
            unsigned int byte = data[place];
            bad |= (byte - 33u > 93u) | (byte == '*') | (byte == '>');
        }
        for (Py_ssize_t place = start + 1; place < end; place++) bad |= (data[place] == '.') & (data[place - 1] == '.');
        return !bad;
    }
    """
    bint penstock_is_plain(const unsigned char* data, Py_ssize_t start, Py_ssize_t end) noexcept nogil


cdef class Texts:
    cdef const int[::1] offsets
    cdef const unsigned char[::1] view
    cdef const unsigned char* content


cdef class Rows:
    cdef public Py_ssize_t count
    cdef bint has_headers
    cdef Texts subjects
    cdef Texts payloads
    cdef Texts names
    cdef Texts values
    cdef const int[::1] maps
    cdef const int[::1] lists

    @cython.locals(texts=Texts)
    cpdef bytes subject(self, Py_ssize_t row)
    @cython.locals(
        names=Texts, values=Texts, size=Py_ssize_t, entry=Py_ssize_t, name=Py_ssize_t, first=Py_ssize_t,
        last=Py_ssize_t,
    )
    cdef Py_ssize_t header_size(self, Py_ssize_t row) except -1


cdef class Encoder:
    cdef bytes reply
    cdef bytes reply_suffix
    cdef bytes fixed
    cdef bytes counter
    cdef bytes id
    cdef long long id_offset
    cdef Bytes out

    @cython.locals(row=Py_ssize_t)
    cpdef Py_ssize_t write(
        self, Rows rows, Py_ssize_t first, Py_ssize_t last, long long number, Py_ssize_t limit
    ) except -1
    @cython.locals(out=Bytes, size=Py_ssize_t, own=bint, add_id=bint, head=Py_ssize_t)
    cdef int _frame(self, Rows rows, Py_ssize_t row, long long number) except -1
    @cython.locals(names=Texts, entry=Py_ssize_t, start=Py_ssize_t)
    cdef bint _has_id(self, Rows rows, Py_ssize_t row) except -1
    @cython.locals(names=Texts, values=Texts, out=Bytes, entry=Py_ssize_t, value=Py_ssize_t)
    cdef int _own_headers(self, Rows rows, Py_ssize_t row) except -1


@cython.locals(largest=Py_ssize_t, row=Py_ssize_t, size=Py_ssize_t, head=Py_ssize_t)
cpdef sizes(Rows rows)

@cython.locals(
    content="const unsigned char*", row=Py_ssize_t, start=Py_ssize_t, end=Py_ssize_t, plain=bint, pattern=bytes,
    before=Py_ssize_t, size=Py_ssize_t,
)
cpdef Py_ssize_t doubtful_subject(Texts subjects, Py_ssize_t count, Py_ssize_t first, list patterns) except -1
@cython.locals(place=Py_ssize_t, whole=bint, size=Py_ssize_t, index=Py_ssize_t, byte="unsigned char")
cdef bint _fits(const unsigned char* content, Py_ssize_t start, Py_ssize_t end, bytes pattern) except -1
