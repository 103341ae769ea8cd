# The C types of plain_acks.py, for the compiler alone.
cimport cython


cdef class PlainAcks:
    cdef bytes head
    cdef bytes words
    cdef public long long sid

    @cython.locals(
        data="const unsigned char*", position=Py_ssize_t, place=Py_ssize_t, stop=Py_ssize_t, head_size=Py_ssize_t,
        words_size=Py_ssize_t, message="long long", size="long long", sequence="long long", first="long long",
        last="long long", count="long long", head="const char*", words="const char*",
    )
    cpdef Py_ssize_t take(self, bytearray buffer, Py_ssize_t start, Py_ssize_t end, list runs) except -1
