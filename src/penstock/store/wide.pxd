# The checksums with the wide instructions of x86 processors (AVX2, SSE4.2), which Cython has no words for: four lanes
# of HighwayHash at once, eight bytes of a CRC at once. The processor is asked whether it has them. What they do is
# written in checksums.py, which runs instead if there are none.
cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>
    #if defined(__x86_64__) && defined(__GNUC__)
    #include <immintrin.h>

    static int penstock_is_wide(void) { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("sse4.2"); }

    #define PENSTOCK_STEP(word) do { \\
        v1 = _mm256_add_epi64(v1, _mm256_add_epi64(word, m0)); \\
        m0 = _mm256_xor_si256(m0, _mm256_mul_epu32(v1, _mm256_srli_epi64(v0, 32))); \\
        v0 = _mm256_add_epi64(v0, m1); \\
        m1 = _mm256_xor_si256(m1, _mm256_mul_epu32(v0, _mm256_srli_epi64(v1, 32))); \\
        v0 = _mm256_add_epi64(v0, _mm256_shuffle_epi8(v1, order)); \\
        v1 = _mm256_add_epi64(v1, _mm256_shuffle_epi8(v0, order)); } while (0)

    __attribute__((target("avx2"))) static unsigned long long penstock_highway(const unsigned long long *init,
            const unsigned long long *key, const unsigned char *first, const unsigned char *data, Py_ssize_t size) {
        __m256i m0 = _mm256_loadu_si256((const __m256i *)init), m1 = _mm256_loadu_si256((const __m256i *)(init + 4));
        __m256i own = _mm256_loadu_si256((const __m256i *)key), word;
        __m256i v0 = _mm256_xor_si256(m0, own), v1 = _mm256_xor_si256(m1, _mm256_shuffle_epi32(own, 0xB1));
        const __m256i order = _mm256_setr_epi8(3, 12, 2, 5, 14, 1, 15, 0, 11, 4, 10, 13, 9, 6, 8, 7,
                                               3, 12, 2, 5, 14, 1, 15, 0, 11, 4, 10, 13, 9, 6, 8, 7);
        int turn;
        for (; size >= 32; size -= 32) {
            word = _mm256_loadu_si256((const __m256i *)first);
            PENSTOCK_STEP(word);
            data += 32;
            first = data;
        }
        if (size) {
            int left = (int)size, whole = left & ~3, odd = left & 3;
            unsigned char last[32] = {0};
            memcpy(last, data, whole);
            if (left & 16) memcpy(last + 28, data + left - 4, 4);
            else if (odd) {
                last[16] = data[whole];
                last[17] = data[whole + (odd >> 1)];
                last[18] = data[left - 1];
            }
            v0 = _mm256_add_epi64(v0, _mm256_set1_epi32(left));
            v1 = _mm256_or_si256(_mm256_sll_epi32(v1, _mm_cvtsi32_si128(left)),
                                 _mm256_srl_epi32(v1, _mm_cvtsi32_si128(32 - left)));
            word = _mm256_loadu_si256((const __m256i *)last);
            PENSTOCK_STEP(word);
        }
        for (turn = 0; turn < 4; turn++) {
            word = _mm256_shuffle_epi32(_mm256_permute4x64_epi64(v0, 0x4E), 0xB1);
            PENSTOCK_STEP(word);
        }
        v0 = _mm256_add_epi64(_mm256_add_epi64(v0, v1), _mm256_add_epi64(m0, m1));
        return (unsigned long long)_mm_cvtsi128_si64(_mm256_castsi256_si128(v0));
    }

    __attribute__((target("sse4.2"))) static unsigned int penstock_crc(const unsigned char *data, Py_ssize_t size) {
        unsigned long long value = 0xFFFFFFFF, word;
        for (; size >= 8; size -= 8, data += 8) {
            memcpy(&word, data, 8);
            value = _mm_crc32_u64(value, word);
        }
        for (; size > 0; size--, data++) value = _mm_crc32_u8((unsigned int)value, *data);
        return (unsigned int)value ^ 0xFFFFFFFF;
    }
    #else
    static int penstock_is_wide(void) { return 0; }
    #define penstock_highway(init, key, first, data, size) 0
    #define penstock_crc(data, size) 0
    #endif
    """
    bint penstock_is_wide() noexcept nogil
    unsigned long long penstock_highway(
        const unsigned long long* init, const unsigned long long* key, const unsigned char* first,
        const unsigned char* data, Py_ssize_t size
    ) noexcept nogil
    unsigned int penstock_crc(const unsigned char* data, Py_ssize_t size) noexcept nogil
