# The C types of arrivals.py, for the compiler alone.
cimport cython

cdef Py_ssize_t _REQUEST_BYTES


cdef class RequestQueue:
    cdef Py_ssize_t _most
    cdef object _items
    cdef Py_ssize_t _size
    cdef object _soon
    cdef object _waiter
    cdef object _room
    cdef object _watch
    cdef bint _alone

    cpdef object put(self, object handle, bytes reply, bytes content)
    cpdef object publish(self, bytes subject, bytes reply, bytes content, bytes header)
    cpdef int add(self, object handle, bytes reply, bytes content) except -1
    @cython.locals(item=tuple, content=bytes)
    cpdef tuple take(self)
    @cython.locals(found=list, item=tuple)
    cpdef list take_publishes(self, Py_ssize_t most)


@cython.locals(end=Py_ssize_t, value="long long", shift=int, byte="long long")
cpdef long long sequence_in(bytes content, Py_ssize_t place)


cdef class AckEntry:
    cdef readonly object channel
    cdef readonly object member
    cdef readonly bytes start
    cdef bint settled


cdef class ArrivingAcks:
    cdef readonly dict entries
    cdef object _settled
    cdef object _other
    cdef list _now
    cdef object _loop

    @cython.locals(entry=AckEntry)
    cpdef object take(self, bytes subject, bytes reply, bytes content, bytes header)
    @cython.locals(entry=AckEntry)
    cpdef object _turn(self)
