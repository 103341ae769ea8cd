# The C types of buffers.py, for the compiler alone.
cimport cython

cdef extern from *:
    """
    #include <stddef.h>
    #include <stdint.h>
    #if defined(__linux__)
    #include <sys/mman.h>
    #include <unistd.h>
    #endif

    /* Ask for huge pages for whole pages that these bytes touch. All of them, so that the system sees one piece. */
    static inline void penstock_huge_pages(void *start, size_t size) {
    #if defined(__linux__) && defined(MADV_HUGEPAGE)
        uintptr_t page = (uintptr_t) sysconf(_SC_PAGESIZE);
        uintptr_t first = (uintptr_t) start & ~(page - 1);
        uintptr_t end = ((uintptr_t) start + size + page - 1) & ~(page - 1);
        madvise((void *) first, end - first, MADV_HUGEPAGE);
    #endif
    }
    """
    void penstock_huge_pages(void* start, size_t size) noexcept

cdef Py_ssize_t _HUGE
cdef long long _NARROW


@cython.final
cdef class Numbers:
    cdef object content
    cdef long long* items
    cdef public Py_ssize_t count
    cdef Py_ssize_t room

    cdef int _grow(self) except -1 nogil
    cdef int append(self, long long value) except -1 nogil
    @cython.locals(narrow="int*", place=Py_ssize_t)
    cpdef object close(self, int bits=*)


cdef class Bytes:
    cdef bytearray content
    cdef unsigned char* items
    cdef public Py_ssize_t used
    cdef Py_ssize_t room
    cdef Py_ssize_t least

    cdef int _grow(self, Py_ssize_t size) except -1 nogil
    cdef int piece(self, const unsigned char* data, Py_ssize_t start, Py_ssize_t end) except -1 nogil
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

    cdef int append(self, const unsigned char* data, Py_ssize_t start, Py_ssize_t end) except -1 nogil
    cpdef tuple close(self)


@cython.final
cdef class Lines:
    cdef Numbers spans
    cdef public Py_ssize_t count

    @cython.locals(position=Py_ssize_t, stop=Py_ssize_t, line_end=Py_ssize_t)
    cdef int split(self, const unsigned char* data, Py_ssize_t start, Py_ssize_t end) except -1 nogil
    @cython.locals(colon=Py_ssize_t, value=Py_ssize_t)
    cdef int _line(self, const unsigned char* data, Py_ssize_t start, Py_ssize_t end) except -1 nogil
    cdef Py_ssize_t at(self, Py_ssize_t line, int part) noexcept nogil
    cdef int forget(self, Py_ssize_t line) noexcept nogil


@cython.locals(place=Py_ssize_t, content=bytearray)
cpdef bytearray used_again(list spare, Py_ssize_t room)

@cython.locals(place="const unsigned char*")
cdef Py_ssize_t find(const unsigned char* data, int byte, Py_ssize_t start, Py_ssize_t end) noexcept nogil

@cython.locals(value="unsigned long long", digit="unsigned int")
cdef long long number(const unsigned char* data, Py_ssize_t start, Py_ssize_t end) noexcept

cdef bint same(
    const unsigned char* data, Py_ssize_t start, Py_ssize_t end, Py_ssize_t other, Py_ssize_t other_end
) noexcept nogil

@cython.locals(
    year="long long", month="long long", day="long long", hour="long long", minute="long long", second="long long",
    micros="long long", scale="long long", digit=int, place=Py_ssize_t, era="long long", days="long long",
)
cdef long long moment(const unsigned char* data, Py_ssize_t start, Py_ssize_t end) noexcept


@cython.locals(count=Py_ssize_t)
cdef Py_ssize_t digits(long long value) noexcept
