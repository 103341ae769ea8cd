# The C types of buffers.py, for the compiler alone.
cimport cython

cdef extern from *:
    """
    #include <stddef.h>
    #include <stdint.h>
    #include <string.h>
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

    /* What a message takes several times stands here, so that it becomes a part of the loop that calls it. */
    static inline Py_ssize_t penstock_find(const unsigned char *data, int byte, Py_ssize_t start, Py_ssize_t end) {
        const unsigned char *place;
        if (end <= start) return -1;
        place = (const unsigned char *) memchr(data + start, byte, (size_t) (end - start));
        return place == NULL ? -1 : place - data;
    }

    /* Read the digits from *place on and move it behind them; -1 if there are none, more than 19, or 64 bits of them. */
    static inline long long penstock_digits(const unsigned char *data, Py_ssize_t *place, Py_ssize_t end) {
        Py_ssize_t at = *place, last = end - at > 19 ? at + 19 : end;
        uint64_t value = 0;
        while (at < last) {
            unsigned int digit = data[at] - 48u;
            if (digit > 9) break;
            value = value * 10 + digit;
            at++;
        }
        if (at == *place || value >> 63) return -1;
        *place = at;
        return (long long) value;
    }

    static inline long long penstock_number(const unsigned char *data, Py_ssize_t start, Py_ssize_t end) {
        Py_ssize_t place = start;
        long long value;
        if (end <= start || end - start > 19) return -1;
        value = penstock_digits(data, &place, end);
        return place == end ? value : -1;
    }
    """
    void penstock_huge_pages(void* start, size_t size) noexcept
    Py_ssize_t penstock_find(const unsigned char* data, int byte, Py_ssize_t start, Py_ssize_t end) noexcept nogil
    long long penstock_digits(const unsigned char* data, Py_ssize_t* place, Py_ssize_t end) noexcept nogil
    long long penstock_number(const unsigned char* data, Py_ssize_t start, Py_ssize_t end) noexcept nogil

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

cdef Py_ssize_t find(const unsigned char* data, int byte, Py_ssize_t start, Py_ssize_t end) noexcept nogil

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
