# The C types of entries.py, for the compiler alone.
cimport cython

from penstock.store.decoding cimport Decoder


cdef int _BEYOND, _BROKEN, _DISORDER, _NEED, _OTHER
cdef unsigned long long _LARGEST


cdef class Entries(Decoder):
    cdef readonly long long last
    cdef public bint counting
    cdef public long long counted
    cdef public long long stored
    cdef public bint whole
    cdef Py_ssize_t place

    cdef Py_ssize_t _one(self, const unsigned char* data, Py_ssize_t position, Py_ssize_t end) except -1 nogil
    @cython.locals(data="const unsigned char*", stop=Py_ssize_t)
    cpdef object entry(self, bytearray buffer, Py_ssize_t start, Py_ssize_t end)
    @cython.locals(
        name="unsigned long long", time="unsigned long long", sequence="unsigned long long", head="unsigned long long",
        payload="unsigned long long",
    )
    cdef int _entry(self, const unsigned char* data, Py_ssize_t position, Py_ssize_t end) except -1 nogil
    @cython.locals(value="unsigned long long", shift=int, byte="unsigned int")
    cdef unsigned long long _number(self, const unsigned char* data, Py_ssize_t place, Py_ssize_t end) noexcept nogil
