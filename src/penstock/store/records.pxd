# The C types of records.py, for the compiler alone.
cimport cython

from penstock.store.checksums cimport Highway
from penstock.store.decoding cimport Decoder
from penstock.wire.buffers cimport Bytes, Numbers


cdef Py_ssize_t _HEAD, _CHECKSUM, _LARGEST
cdef unsigned long long _SEQUENCE
cdef int MESSAGE, ERASED, TOMBSTONE, _BEYOND, _BROKEN


cdef class Records(Decoder):
    cdef public bint verify
    cdef Bytes scratch
    cdef Numbers tombstones
    cdef Numbers sizes
    cdef bint sized
    cdef unsigned char first[32]
    cdef bytes graves
    cdef const unsigned char* graves_data
    cdef Py_ssize_t graves_size
    cdef Py_ssize_t grave
    cdef long long grave_base
    cdef Highway hash
    cdef readonly long long last
    cdef int kind

    @cython.locals(size=Py_ssize_t)
    cdef Py_ssize_t _one(self, const unsigned char* data, Py_ssize_t position, Py_ssize_t end) except -1 nogil
    @cython.locals(
        data="const unsigned char*", position=Py_ssize_t, size=Py_ssize_t, records="long long", messages="long long",
        first="long long", highest="long long", first_time="long long", last_time="long long", payload="long long",
        count=Py_ssize_t, present=bytearray, bits=bytearray, base="long long", place="long long",
    )
    cpdef dict survey(self, bytearray buffer, Py_ssize_t start, Py_ssize_t end)
    @cython.locals(
        size="unsigned int", sequence="unsigned long long", time="long long", subject_size="unsigned short",
        headed="unsigned int", extra=Py_ssize_t, head="unsigned int",
    )
    cdef Py_ssize_t _record(self, const unsigned char* data, Py_ssize_t position, Py_ssize_t end) except -1 nogil
    @cython.locals(stop=Py_ssize_t, value="unsigned long long")
    cdef bint _holds(self, const unsigned char* data, Py_ssize_t position, Py_ssize_t size) except -1 nogil
    @cython.locals(stop=Py_ssize_t)
    cdef bint _is_split(self, const unsigned char* data) except -1 nogil
    @cython.locals(place=Py_ssize_t, byte="unsigned int", before="unsigned int")
    cdef bint _is_subject(self, const unsigned char* data) noexcept nogil
    @cython.locals(place="long long")
    cdef bint _is_dead(self, long long sequence) except -1 nogil
    @cython.locals(base="long long")
    cdef int _open_grave(self) except -1 nogil
