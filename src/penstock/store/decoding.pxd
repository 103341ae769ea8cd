# The C types of decoding.py, for the compiler alone.
cimport cython

from penstock.wire.columns cimport Columns


cdef int _NEED, _FULL


cdef class Decoder(Columns):
    @cython.locals(data="const unsigned char*", position=Py_ssize_t)
    cpdef Py_ssize_t take(self, bytearray buffer, Py_ssize_t start, Py_ssize_t end) except -1
    @cython.locals(size=Py_ssize_t)
    cdef Py_ssize_t _take(self, const unsigned char* data, Py_ssize_t position, Py_ssize_t end) except -1 nogil
    cdef Py_ssize_t _one(self, const unsigned char* data, Py_ssize_t position, Py_ssize_t end) except -1 nogil
    cdef int _message(self, const unsigned char* data) except -1 nogil
