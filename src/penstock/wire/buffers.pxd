# The C types of buffers.py, for the compiler alone.
cimport cython


@cython.final
cdef class Numbers:
    cdef object content
    cdef long long* items
    cdef public Py_ssize_t count
    cdef Py_ssize_t room

    cdef int append(self, long long value) except -1
    @cython.locals(narrow="int*", place=Py_ssize_t)
    cpdef object close(self, int bits=*)


cdef class Bytes:
    cdef bytearray content
    cdef unsigned char* items
    cdef public Py_ssize_t used
    cdef Py_ssize_t room
    cdef Py_ssize_t least

    cdef int _grow(self, Py_ssize_t size) except -1
    cdef int piece(self, const unsigned char* data, Py_ssize_t start, Py_ssize_t end) except -1
    cdef int text(self, bytes text) except -1
    @cython.locals(size=Py_ssize_t, place=Py_ssize_t)
    cdef int number(self, long long value) except -1
    @cython.locals(rest="unsigned long long")
    cdef int varint(self, long long value) except -1
    @cython.locals(size=Py_ssize_t)
    cdef bytes copy(self)
    cpdef bytearray take(self)


@cython.final
cdef class Strings(Bytes):
    cdef public Py_ssize_t count
    cdef Numbers offsets

    cdef int append(self, const unsigned char* data, Py_ssize_t start, Py_ssize_t end) except -1
    cpdef tuple close(self)


@cython.final
cdef class Lines:
    cdef Numbers spans
    cdef public Py_ssize_t count

    @cython.locals(position=Py_ssize_t, stop=Py_ssize_t, line_end=Py_ssize_t)
    cdef int split(self, const unsigned char* data, Py_ssize_t start, Py_ssize_t end) except -1
    @cython.locals(colon=Py_ssize_t, value=Py_ssize_t)
    cdef int _line(self, const unsigned char* data, Py_ssize_t start, Py_ssize_t end) except -1
    cdef Py_ssize_t at(self, Py_ssize_t line, int part) noexcept
    cdef int forget(self, Py_ssize_t line) noexcept


@cython.locals(place=Py_ssize_t, content=bytearray)
cpdef bytearray used_again(list spare, Py_ssize_t room)

@cython.locals(place="const unsigned char*")
cdef Py_ssize_t find(const unsigned char* data, int byte, Py_ssize_t start, Py_ssize_t end) noexcept

@cython.locals(value="unsigned long long", digit="unsigned int")
cdef long long number(const unsigned char* data, Py_ssize_t start, Py_ssize_t end) noexcept

cdef bint same(
    const unsigned char* data, Py_ssize_t start, Py_ssize_t end, Py_ssize_t other, Py_ssize_t other_end
) noexcept

@cython.locals(
    year="long long", month="long long", day="long long", hour="long long", minute="long long", second="long long",
    micros="long long", scale="long long", digit=int, place=Py_ssize_t, era="long long", days="long long",
)
cdef long long moment(const unsigned char* data, Py_ssize_t start, Py_ssize_t end) noexcept


@cython.locals(count=Py_ssize_t)
cdef Py_ssize_t digits(long long value) noexcept
