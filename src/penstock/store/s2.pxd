# The C types of s2.py, for the compiler alone.
cimport cython


@cython.locals(value="unsigned int")
cpdef object masked(bytearray content)

@cython.locals(size="long long", shift=int, byte=int, target=bytearray, written="long long", source="const unsigned char*")
cpdef bytearray unpack(bytearray data, Py_ssize_t start, Py_ssize_t end)

@cython.locals(
    written="long long", offset="long long", tag="unsigned int", kind=int, size="long long", more=int,
    part="long long", near="long long",
)
cdef long long steps(
    const unsigned char* data, Py_ssize_t place, Py_ssize_t end, unsigned char* target, long long room
) noexcept
