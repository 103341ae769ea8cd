# The C types of entries.py, for the compiler alone.
cimport cython

from penstock.wire.columns cimport Columns


@cython.final
cdef class Entries(Columns):
    cdef readonly long long last
    cdef public bint counting
    cdef public long long counted
    cdef public long long stored
    cdef public bint whole
    cdef Py_ssize_t place

    @cython.locals(data="const unsigned char*", position=Py_ssize_t)
    cpdef Py_ssize_t take(self, bytearray buffer, Py_ssize_t start, Py_ssize_t end) except -1
    @cython.locals(data="const unsigned char*", stop=Py_ssize_t)
    cpdef object entry(self, bytearray buffer, Py_ssize_t start, Py_ssize_t end)
    @cython.locals(
        name="unsigned long long", time="unsigned long long", sequence="unsigned long long", head="unsigned long long",
        payload="unsigned long long",
    )
    cdef int _entry(self, const unsigned char* data, Py_ssize_t position, Py_ssize_t end) except -1
    @cython.locals(value="unsigned long long", shift=int, byte="unsigned int")
    cdef unsigned long long _number(self, const unsigned char* data, Py_ssize_t place, Py_ssize_t end) noexcept
