# The C types of blake2.py, for the compiler alone.
cimport cython

from penstock.wire.frames cimport Rows, Texts


cdef class State:
    cdef unsigned long long hash[8]
    cdef unsigned long long first[8]
    cdef unsigned long long count
    cdef unsigned char block[128]
    cdef const unsigned char* order
    cdef Py_ssize_t filled

    @cython.locals(place=Py_ssize_t)
    cdef int begin(self) except -1
    @cython.locals(names=Texts, values=Texts, entry=Py_ssize_t, place=Py_ssize_t)
    cdef int head(self, Rows rows, Py_ssize_t row) except -1
    cdef int text(self, const char* content, Py_ssize_t size) except -1
    @cython.locals(size=Py_ssize_t)
    cdef int update(self, const unsigned char* content, Py_ssize_t start, Py_ssize_t end) except -1
    @cython.locals(place=Py_ssize_t)
    cdef int finish(self, unsigned char* target) except -1
    @cython.locals(order="const unsigned char*", place=Py_ssize_t, byte=Py_ssize_t, turn=Py_ssize_t)
    cdef int compress(self, bint last) except -1


@cython.locals(target="unsigned char*", state=State, row=Py_ssize_t)
cpdef bytes row_digests(Rows rows)

@cython.locals(a="unsigned long long", b="unsigned long long", c="unsigned long long", d="unsigned long long")
cdef int quarter(
    unsigned long long* v, int place_a, int place_b, int place_c, int place_d, unsigned long long x,
    unsigned long long y,
) noexcept nogil
