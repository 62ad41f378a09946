/* fl/data/checksum.h - CRC checksums */
#ifndef FL_MEM_H
#include "../../fl_mem.h"
#endif
#ifndef FL_DATA_CHECKSUM_H
#define FL_DATA_CHECKSUM_H

#ifdef __cplusplus
extern "C" {
#endif

/* CRC32C (Castagnoli, RFC 3720): continues crc (0: start) with n bytes. */
FL_API uint32_t fl_data_crc32c(uint32_t crc, const void *bytes, size_t n);
/* The same with the polynomial of zip, gzip and PNG (IEEE 802.3). */
FL_API uint32_t fl_data_crc32(uint32_t crc, const void *bytes, size_t n);

#ifdef __cplusplus
}
#endif
#endif /* FL_DATA_CHECKSUM_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_DATA_CHECKSUM) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_DATA_CHECKSUM_IMPL
#define FL_DATA_CHECKSUM_IMPL
#include <pthread.h>
#include <string.h>

/* Slicing by 8: table k is for a byte followed by k zero bytes. */
static uint32_t fl__crc32c_table[8][256], fl__crc32_table[8][256];
static pthread_once_t fl__crc_once = PTHREAD_ONCE_INIT;

static void fl__crc_fill(uint32_t table[8][256], uint32_t polynomial) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int k = 0; k < 8; k++) c = c & 1 ? (c >> 1) ^ polynomial : c >> 1;
        table[0][i] = c;
    }
    for (int i = 0; i < 256; i++)
        for (int k = 1; k < 8; k++) {
            uint32_t c = table[k - 1][i];
            table[k][i] = (c >> 8) ^ table[0][c & 255];
        }
}

static void fl__crc_init(void) {
    fl__crc_fill(fl__crc32c_table, 0x82f63b78u);
    fl__crc_fill(fl__crc32_table, 0xedb88320u);
}

static uint32_t fl__crc(uint32_t table[8][256], uint32_t crc, const void *bytes, size_t n) {
    const unsigned char *p = bytes;
    pthread_once(&fl__crc_once, fl__crc_init);
    crc = ~crc;
    for (; n >= 8; n -= 8, p += 8) {
        uint64_t w;
        memcpy(&w, p, 8);
        w ^= crc;
        crc = 0;
        for (int k = 0; k < 8; k++) crc ^= table[7 - k][(w >> (8 * k)) & 255];
    }
    for (; n; n--) crc = (crc >> 8) ^ table[0][(crc ^ *p++) & 255];
    return ~crc;
}

#ifdef __x86_64__
/* CRCs are polynomials over GF(2) modulo CRC32C's, bit 31 being the coefficient of 1: their product. */
static uint32_t fl__crc_product(uint32_t a, uint32_t b) {
    uint32_t p = 0;
    for (; a; a <<= 1) {
        if (a >> 31) p ^= b;
        b = b & 1 ? (b >> 1) ^ 0x82f63b78u : b >> 1;
    }
    return p;
}

/* x^(8 n): appending n zero bytes multiplies the CRC by this. */
static uint32_t fl__crc_zeros(uint64_t n) {
    uint32_t power = 1u << 31, square = 1u << 23;
    for (; n; n >>= 1, square = fl__crc_product(square, square))
        if (n & 1) power = fl__crc_product(power, square);
    return power;
}

/* The crc32 instruction has a latency of three cycles and a throughput of one: three CRCs run in parallel and
   are combined after PART bytes each. */
__attribute__((target("sse4.2")))
static uint32_t fl__crc_sse42(uint32_t crc, const unsigned char *p, size_t n) {
    enum { PART = 8192 };
    const uint32_t one = fl__crc_zeros(n < 3 * PART ? 0 : PART), two = fl__crc_product(one, one);
    uint64_t c[3] = {crc, 0, 0}, w[3];
    for (; n >= 3 * PART; n -= 3 * PART, p += 2 * PART) {
        for (const unsigned char *end = p + PART; p < end; p += 8) {
            for (int k = 0; k < 3; k++) memcpy(&w[k], p + k * PART, 8);
            for (int k = 0; k < 3; k++) c[k] = __builtin_ia32_crc32di(c[k], w[k]);
        }
        c[0] = fl__crc_product(two, (uint32_t)c[0]) ^ fl__crc_product(one, (uint32_t)c[1]) ^ c[2];
        c[1] = c[2] = 0;
    }
    for (; n >= 8; n -= 8, p += 8) {
        memcpy(w, p, 8);
        c[0] = __builtin_ia32_crc32di(c[0], w[0]);
    }
    for (; n; n--) c[0] = __builtin_ia32_crc32qi((uint32_t)c[0], *p++);
    return (uint32_t)c[0];
}
#endif

FL_API uint32_t fl_data_crc32c(uint32_t crc, const void *bytes, size_t n) {
#ifdef __x86_64__
    /* short inputs always use the table, so that it is tested on any machine */
    if (n >= 64 && __builtin_cpu_supports("sse4.2")) return ~fl__crc_sse42(~crc, bytes, n);
#endif
    return fl__crc(fl__crc32c_table, crc, bytes, n);
}

FL_API uint32_t fl_data_crc32(uint32_t crc, const void *bytes, size_t n) {
    return fl__crc(fl__crc32_table, crc, bytes, n);
}

#endif
#endif

/* MIT licence: see LICENSE. */
