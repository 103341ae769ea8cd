# The C types of s2.py, for the compiler alone.
cimport cython


cpdef resize(bytearray buffer, Py_ssize_t size)

@cython.locals(kind=int, size="long long")
cpdef long long becomes(bytearray data, Py_ssize_t start, Py_ssize_t end) except -1

@cython.locals(size="long long", shift=int, byte="long long")
cpdef tuple block_size(bytearray data, Py_ssize_t start, Py_ssize_t end)

@cython.locals(
    size="long long", is_block=bint, begin=Py_ssize_t, told="unsigned int", written="long long", value="unsigned int",
    source="const unsigned char*", goal="unsigned char*",
)
cpdef unpack_piece(bytearray data, Py_ssize_t start, Py_ssize_t end, bytearray target, Py_ssize_t place)

@cython.locals(
    written="long long", offset="long long", tag="unsigned int", kind=int, size="long long", more=int,
    part="long long", near="long long",
)
cdef long long steps(
    const unsigned char* data, Py_ssize_t place, Py_ssize_t end, unsigned char* target, long long room
) noexcept nogil
