# The C types of checksums.py, for the compiler alone.
cimport cython


cdef bint _wide
cdef unsigned long long _LOW
cdef unsigned long long _init[8]
cdef unsigned int _tables[8][256]


@cython.final
cdef class Highway:
    cdef unsigned long long key[4]
    cdef unsigned long long state[16]
    cdef unsigned char last[32]
    cdef bint wide

    @cython.locals(view="const unsigned char*")
    cpdef object of(self, bytes content)

    @cython.locals(lane=int, key="unsigned long long", state="unsigned long long*")
    cdef unsigned long long digest(
        self, const unsigned char* first, const unsigned char* data, Py_ssize_t start, Py_ssize_t end
    ) noexcept nogil
    @cython.locals(lane=int, word="unsigned long long")
    cdef int _step(self, const unsigned char* data, Py_ssize_t start) noexcept nogil
    @cython.locals(state="unsigned long long*")
    cdef int _mix(self, int lane, unsigned long long word) noexcept nogil
    cdef int _merge(self) noexcept nogil
    @cython.locals(
        state="unsigned long long*", low="unsigned long long", high="unsigned long long", first="unsigned long long",
        second="unsigned long long",
    )
    cdef int _zip(self, int source, int target) noexcept nogil
    @cython.locals(
        state="unsigned long long*", last="unsigned char*", whole=int, odd=int, lane=int, place=int,
        word="unsigned long long", low="unsigned long long", high="unsigned long long",
    )
    cdef int _rest(self, const unsigned char* data, Py_ssize_t start, int size) noexcept nogil
    @cython.locals(
        state="unsigned long long*", low="unsigned long long", high="unsigned long long", third="unsigned long long",
        fourth="unsigned long long",
    )
    cdef int _turn(self) noexcept nogil


cpdef object crc32c(bytes content, bint wide=*)

@cython.locals(value="unsigned int", word="unsigned long long")
cdef unsigned int crc(const unsigned char* data, Py_ssize_t start, Py_ssize_t end, bint wide=*) noexcept nogil

@cython.locals(lane=int, place=int, row=int, value="unsigned int")
cdef int _prepare() except -1
