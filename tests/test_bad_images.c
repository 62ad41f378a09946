/* test_bad_images.c - malformed JPEG and PNG files, each with what is said */
#include "pictures.h"

/* The sound file with up to three bytes changed, then cut; NULL: it is read, whatever was changed. */
typedef struct edit {
    int at[3], byte[3];
    int cut;
    const char *want;
} edit;

static fl_tensor *edited(const unsigned char *sound, size_t n, const edit *e) {
    unsigned char *copy = malloc(n);
    memcpy(copy, sound, n);
    for (int k = 0; k < 3; k++)
        if (e->at[k]) copy[e->at[k]] = (unsigned char)e->byte[k];
    fl_tensor *t = fl_vision_decode(copy, e->cut ? (size_t)e->cut : n, .max_pixels = 1 << 20);
    free(copy);
    return t;
}

static void check_edit(const unsigned char *sound, size_t n, const edit *e, size_t row) {
    fl_scope s = fl_scope_begin();
    const bool read = edited(sound, n, e) != NULL;
    if (!CHECK_EQ_INT(read, !e->want) || (e->want && !CHECK_ERROR(e->want)))
        printf("  row %zu: %s\n", row, fl_error() ? fl_error() : "read");
    fl_error_clear();
    fl_scope_end(&s);
}

/* Offsets: tables 20 and 89, frame 158, codes 177, 202, 231, 258, scan 289, its bits 303 to 372. */
static const edit bad_jpeg[] = {
#define ONE(at, byte, want) {{at}, {byte}, 0, want}
#define TWO(a, x, b, y, want) {{a, b}, {x, y}, 0, want}
#define CUT(n, want) {{0}, {0}, n, want}
    CUT(2, "unknown image format"),
    CUT(3, "offset 2: the image is truncated"),
    CUT(4, "offset 4: the image is truncated"),
    CUT(20, "offset 20: the image is truncated"),
    CUT(60, "offset 22: the image is truncated"),
    CUT(160, "offset 160: the image is truncated"),
    CUT(177, "offset 177: the image is truncated"),
    CUT(200, "offset 179: the image is truncated"),
    CUT(289, "offset 289: the image is truncated"),
    CUT(302, "offset 291: the image is truncated"),
    CUT(303, "offset 303: the image is truncated"),
    CUT(340, "offset 325: the image is truncated"),
    CUT(372, "offset 360: the image is truncated"),
    CUT(374, "offset 360: the image is truncated"),
    ONE(1, 0xd9, "unknown image format"),
    ONE(2, 0, "unknown image format"),
    ONE(3, 0xd8, "offset 4: Invalid JPEG file structure: two SOI markers"),
    ONE(3, 0xd9, "offset 4: JPEG datastream contains no image"),
    ONE(3, 0xda, "offset 4: Invalid JPEG file structure: SOS before SOF"),
    ONE(3, 0xc0, "offset 4: Bogus marker length"),
    ONE(3, 0xc8, "offset 4: Unsupported JPEG process: SOF type 0xc8"),
    ONE(4, 255, "offset 20: the image is truncated"),
    ONE(5, 1, NULL),
    ONE(5, 0, NULL),
    ONE(24, 0x14, "offset 22: Bogus DQT index 4"),
    ONE(24, 4, "offset 22: Bogus DQT index 4"),
    ONE(24, 0x20, "offset 22: Bogus marker length"),
    ONE(23, 66, "offset 22: Bogus marker length"),
    ONE(23, 1, "offset 22: Bogus marker length"),
    ONE(159, 0xc1, NULL),
    ONE(159, 0xc2, "offset 303: Invalid progressive parameters Ss=0 Se=63 Ah=0 Al=0"),
    ONE(159, 0xc3, "offset 160: Unsupported JPEG process: SOF type 0xc3"),
    ONE(159, 0xc5, "offset 160: Unsupported JPEG process: SOF type 0xc5"),
    ONE(159, 0xcb, "offset 160: Unsupported JPEG process: SOF type 0xcb"),
    ONE(159, 0xcd, "offset 160: Unsupported JPEG process: SOF type 0xcd"),
    ONE(159, 0xcf, "offset 160: Unsupported JPEG process: SOF type 0xcf"),
    ONE(159, 0xd8, "offset 160: Invalid JPEG file structure: two SOI markers"),
    ONE(161, 16, "offset 160: Bogus marker length"),
    ONE(161, 18, "offset 160: Bogus marker length"),
    ONE(161, 8, "offset 160: Bogus marker length"),
    ONE(162, 12, "offset 303: Unsupported JPEG data precision 12"),
    ONE(162, 16, "offset 303: Unsupported JPEG data precision 16"),
    ONE(162, 7, "offset 303: Unsupported JPEG data precision 7"),
    TWO(163, 0, 164, 0, "offset 160: Empty JPEG image (DNL not supported)"),
    TWO(165, 0, 166, 0, "offset 160: Empty JPEG image (DNL not supported)"),
    TWO(163, 0xff, 164, 0xff, "offset 303: Maximum supported image dimension is 65500 pixels"),
    TWO(165, 0xff, 166, 0xff, "offset 303: Maximum supported image dimension is 65500 pixels"),
    TWO(163, 0x40, 165, 0x40, "16411 x 16405 pixels, more than max_pixels (1048576)"),
    TWO(163, 1, 165, 1, NULL),
    ONE(167, 0, "offset 160: Empty JPEG image (DNL not supported)"),
    ONE(167, 4, "offset 160: Bogus marker length"),
    ONE(167, 255, "offset 160: Bogus marker length"),
    ONE(167, 1, "offset 160: Bogus marker length"),
    ONE(169, 0x00, "offset 303: Bogus sampling factors"),
    ONE(169, 0x51, "offset 303: Bogus sampling factors"),
    ONE(169, 0x15, "offset 303: Bogus sampling factors"),
    ONE(169, 0x44, "offset 303: Sampling factors too large for interleaved scan"),
    ONE(170, 2, "offset 303: Quantization table 0x02 was not defined"),
    ONE(170, 4, "offset 303: Quantization table 0x04 was not defined"),
    ONE(171, 1, "offset 291: Invalid component ID 2 in SOS"),
    ONE(168, 2, "offset 291: Invalid component ID 1 in SOS"),
    ONE(180, 255, "offset 179: Bogus Huffman table definition"),
    ONE(180, 0, "offset 179: Bogus marker length"),
    ONE(181, 0x04, "offset 179: Bogus DHT index 4"),
    ONE(181, 0x20, "offset 179: Bogus DHT index 32"),
    ONE(181, 1, NULL),
    ONE(182, 3, "offset 179: Bogus Huffman table definition"),
    ONE(185, 200, "offset 179: Bogus Huffman table definition"),
    ONE(183, 5, "offset 179: Bogus Huffman table definition"),
    ONE(198, 16, "offset 303: Bogus Huffman table definition"),
    ONE(198, 200, "offset 303: Bogus Huffman table definition"),
    ONE(206, 0x15, "offset 204: Bogus DHT index 5"),
    ONE(290, 0xc0, "offset 291: Invalid JPEG file structure: two SOF markers"),
    ONE(292, 10, "offset 291: Bogus marker length"),
    ONE(292, 13, "offset 291: Bogus marker length"),
    ONE(293, 0, "offset 291: Bogus marker length"),
    ONE(293, 5, "offset 291: Bogus marker length"),
    ONE(293, 2, "offset 291: Bogus marker length"),
    ONE(294, 9, "offset 291: Invalid component ID 9 in SOS"),
    ONE(296, 1, "offset 291: Invalid component ID 1 in SOS"),
    ONE(295, 0x22, "offset 303: Huffman table 0x02 was not defined"),
    ONE(295, 0x40, "offset 303: Huffman table 0x04 was not defined"),
    ONE(295, 0x04, "offset 303: Huffman table 0x04 was not defined"),
    ONE(301, 1, NULL),
    ONE(302, 5, NULL),
    ONE(300, 9, NULL),
    ONE(310, 255, NULL),
    TWO(310, 255, 311, 0xd9, NULL),
    TWO(310, 255, 311, 0xd0, NULL),
    TWO(310, 255, 311, 0xda, NULL),
    TWO(310, 255, 311, 0xc0, NULL),
    {{163, 164, 165}, {0xff, 0xdc, 0xff}, 0, "65307 x 65500 pixels"},
};

TEST(bad_jpeg_files) {
    if (!reads(jpeg, sizeof jpeg)) SKIP("no libjpeg");
    begin();
    fl_scope s = fl_scope_begin();
    for (size_t i = 0; i < sizeof bad_jpeg / sizeof *bad_jpeg; i++)
        check_edit(jpeg, sizeof jpeg, &bad_jpeg[i], i);
    end(&s);
}

/* A grey progressive file of that many scans, each of 10 bytes; and zeros in front of its end. */
static size_t put_scans(unsigned char *to, int side, int scans, size_t size) {
    unsigned char *p = to;
    memcpy(p, "\xff\xd8\xff\xdb\0\x43\0", 7), memset(p + 7, 1, 64), p += 71;
    const unsigned char frame[] = {0xff, 0xc2, 0, 11, 8, (unsigned char)(side >> 8), (unsigned char)side,
                                   (unsigned char)(side >> 8), (unsigned char)side, 1, 1, 0x11, 0};
    memcpy(p, frame, sizeof frame), p += sizeof frame;
    for (int ac = 0; ac < 2; ac++) {
        memset(p, 0, 22), memcpy(p, "\xff\xc4\0\x14", 4), p[4] = (unsigned char)(16 * ac), p[5] = 1;
        p[21] = ac ? 0xe0 : 0, p += 22;
    }
    for (int k = 0; k < scans; k++) {
        memcpy(p, "\xff\xda\0\10\1\1\0\0\0\0", 10), p += 10;
        if (k) p[-3] = 1, p[-2] = 63, p[-1] = 0x10; /* bits of coefficients that are 0 */
    }
    memset(p, 0, (size_t)(to + size - 2 - p)), memcpy(to + size - 2, "\xff\xd9", 2);
    return size;
}

TEST(jpeg_scans) {
    if (!reads(jpeg, sizeof jpeg)) SKIP("no libjpeg");
    begin();
    fl_scope s = fl_scope_begin();
    static unsigned char file[4096];
    static const struct {
        int side, most;
        size_t size;
    } cases[] = {{8, 16 + 16, 1024}, {8, 16 + 9, 600}, {250, 16 + 8, 1024}, {256, 16 + 8, 1024},
                 {250, 16 + 32, 4096}, {512, 16 + 2, 1024}, {1000, 16, 1024}, {1000, 16 + 2, 4096}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int over = 0; over < 2; over++) {
            const size_t n = put_scans(file, cases[i].side, cases[i].most + over, cases[i].size);
            if (!CHECK_EQ_INT(fl_vision_decode(file, n) != NULL, !over)) printf("  row %zu %s\n", i,
                                                                                fl_error());
            char want[80];
            snprintf(want, sizeof want, "a file of %d bytes may have at most %d scans", (int)n,
                     cases[i].most);
            if (over) CHECK_ERROR(want);
        }
    /* coefficients of four components, each of 32 x 32 pixels for one */
    size_t n = put_scans(file, 8, 2, 400);
    memmove(file + 84 + 9, file + 84, n - 84), n += 9;
    file[74] = 20, file[76] = 0xff, file[77] = 0, file[78] = 0, file[79] = 1, file[80] = 4;
    for (unsigned k = 0; k < 4; k++)
        file[81 + 3 * k] = (unsigned char)(k + 1), file[82 + 3 * k] = 0x44, file[83 + 3 * k] = 0;
    CHECK(!fl_vision_decode(file, n));
    CHECK_ERROR("out of memory for coefficients: more than 64 bytes per pixel");
    end(&s);
}

/* ---- PNG ---- */

static unsigned char png[4096];
static size_t png_size;

static void put32(unsigned char *to, uint32_t v) {
    for (int k = 0; k < 4; k++) to[k] = (unsigned char)(v >> (24 - 8 * k));
}

static void put_chunk(const char *kind, const void *bytes, size_t n) {
    unsigned char *to = png + png_size;
    put32(to, (uint32_t)n);
    memcpy(to + 4, kind, 4), memcpy(to + 8, bytes, n);
    put32(to + 8 + n, fl_data_crc32(0, to + 4, n + 4));
    png_size += n + 12;
}

/* `left` bytes of the pixels, each row's filter and zeros, as a zlib stream of one stored block. */
static size_t packed(unsigned char *to, int64_t left, int filter) {
    unsigned char *p = to + 7;
    uint32_t a = 1, b = 0;
    memcpy(to, "\x78\x01\x01", 3);
    to[3] = (unsigned char)left, to[4] = (unsigned char)(left >> 8), to[5] = (unsigned char)~to[3];
    to[6] = (unsigned char)~to[4];
    memset(p, 0, (size_t)left);
    p[0] = (unsigned char)filter;
    for (int64_t i = 0; i < left; i++) a = (a + p[i]) % 65521, b = (b + a) % 65521;
    put32(p + left, b << 16 | a);
    return (size_t)left + 11;
}

/* H header, P palette of two colours, D pixels, d and e the halves of them, Z pixels of no bytes, E end; Q a
   palette of five bytes, R one of none, T a colour that is transparent, B two of a palette, C a chunk that
   nobody knows and must, c one that may be passed over. */
static void put_chunks(const char *chunks, const int head[7], int filter, int more) {
    static const int channels[] = {1, 1, 3, 1, 2, 1, 4, 1};
    unsigned char header[13] = {0}, pixels[512];
    const int64_t row = ((int64_t)head[0] * head[2] * channels[head[3] & 7] + 7) / 8 + 1;
    const int64_t all = row * head[1] + more;
    const size_t n = packed(pixels, all > 0 && all < 400 ? all : 20, filter), half = n / 2;
    put32(header, (uint32_t)head[0]), put32(header + 4, (uint32_t)head[1]);
    for (int k = 2; k < 7; k++) header[6 + k] = (unsigned char)head[k];
    memcpy(png, "\x89PNG\r\n\x1a\n", 8), png_size = 8;
    for (; *chunks; chunks++) switch (*chunks) {
        case 'H': put_chunk("IHDR", header, 13); break;
        case 'h': put_chunk("IHDR", header, 12); break;
        case 'P': put_chunk("PLTE", "\1\2\3\4\5\6", 6); break;
        case 'Q': put_chunk("PLTE", "\1\2\3\4\5", 5); break;
        case 'R': put_chunk("PLTE", "", 0); break;
        case 'T': put_chunk("tRNS", "\0\1\0\2\0\3", 6); break;
        case 'B': put_chunk("tRNS", "\1\2", 2); break;
        case 'C': put_chunk("ABCD", "x", 1); break;
        case 'c': put_chunk("abCd", "x", 1); break;
        case 'D': put_chunk("IDAT", pixels, n); break;
        case 'd': put_chunk("IDAT", pixels, half); break;
        case 'e': put_chunk("IDAT", pixels + half, n - half); break;
        case 'Z': put_chunk("IDAT", "", 0); break;
        default: put_chunk("IEND", "", 0);
        }
}

/* Width, height, bits, colour (0 grey, 2 RGB, 3 palette), method of packing, filters, interlace; chunks; the
   first row's filter; bytes more than the pixels are; a byte that is changed; where the file is cut. */
static const struct {
    int head[7];
    const char *chunks;
    int filter, more, at, byte, cut;
    const char *want;
} bad_png[] = {
#define HEAD(w, h, bits, colour, pack, filters, lace, want) \
    {{w, h, bits, colour, pack, filters, lace}, "HDE", 0, 0, 0, 0, 0, want}
#define CHUNKS(chunks, want) {{3, 2, 8, 2, 0, 0, 0}, chunks, 0, 0, 0, 0, 0, want}
#define COLOURS(bits, chunks, want) {{3, 2, bits, 3, 0, 0, 0}, chunks, 0, 0, 0, 0, 0, want}
#define BYTE(at, byte, want) {{3, 2, 8, 2, 0, 0, 0}, "HDE", 0, 0, at, byte, 0, want}
#define PNG_CUT(n, want) {{3, 2, 8, 2, 0, 0, 0}, "HDE", 0, 0, 0, 0, n, want}
    HEAD(3, 2, 8, 2, 0, 0, 0, NULL),
    HEAD(3, 2, 16, 2, 0, 0, 0, NULL),
    HEAD(3, 2, 1, 0, 0, 0, 0, NULL),
    HEAD(3, 2, 8, 6, 0, 0, 0, NULL),
    HEAD(0, 2, 8, 2, 0, 0, 0, "offset 33: Invalid IHDR data"),
    HEAD(3, 0, 8, 2, 0, 0, 0, "offset 33: Invalid IHDR data"),
    HEAD(-1, 2, 8, 2, 0, 0, 0, "offset 33: PNG unsigned integer out of range"),
    HEAD(3, 65501, 8, 2, 0, 0, 0, "offset 33: Invalid IHDR data"),
    HEAD(65501, 2, 8, 2, 0, 0, 0, "offset 33: Invalid IHDR data"),
    HEAD(65500, 65500, 8, 2, 0, 0, 0,
         "65500 x 65500 pixels, more than max_pixels (1048576)"),
    HEAD(1024, 1024, 8, 2, 0, 0, 0, "1024 x 1024 pixels, too many for a file of 88 bytes"),
    HEAD(1024, 1025, 8, 2, 0, 0, 0, "1024 x 1025 pixels, more than max_pixels (1048576)"),
    HEAD(3, 2, 0, 2, 0, 0, 0, "offset 33: Invalid IHDR data"),
    HEAD(3, 2, 3, 0, 0, 0, 0, "offset 33: Invalid IHDR data"),
    HEAD(3, 2, 4, 2, 0, 0, 0, "offset 33: Invalid IHDR data"),
    HEAD(3, 2, 32, 2, 0, 0, 0, "offset 33: Invalid IHDR data"),
    HEAD(3, 2, 16, 3, 0, 0, 0, "offset 33: Invalid IHDR data"),
    HEAD(3, 2, 8, 1, 0, 0, 0, "offset 33: Invalid IHDR data"),
    HEAD(3, 2, 8, 5, 0, 0, 0, "offset 33: Invalid IHDR data"),
    HEAD(3, 2, 8, 7, 0, 0, 0, "offset 33: Invalid IHDR data"),
    HEAD(3, 2, 8, 2, 1, 0, 0, "offset 33: Invalid IHDR data"),
    HEAD(3, 2, 8, 2, 0, 1, 0, "offset 33: Invalid IHDR data"),
    HEAD(3, 2, 8, 2, 0, 64, 0, "offset 33: Invalid IHDR data"),
    HEAD(3, 2, 8, 2, 0, 0, 2, "offset 33: Invalid IHDR data"),
    HEAD(3, 2, 8, 2, 0, 0, 1, "offset 72: Not enough image data"),
    HEAD(3, 2, 8, 3, 0, 0, 0, "offset 41: IDAT: Missing PLTE before IDAT"),
    CHUNKS("", "offset 8: the image is truncated"),
    CHUNKS("H", "offset 33: the image is truncated"),
    CHUNKS("HE", "offset 41: IEND: out of place"),
    CHUNKS("DHE", "offset 16: IDAT: Missing IHDR before IDAT"),
    CHUNKS("EHD", "offset 16: IEND: out of place"),
    CHUNKS("HHDE", "offset 41: IHDR: out of place"),
    CHUNKS("hDE", "offset 16: IHDR: invalid"),
    CHUNKS("HdE", "offset 68: Not enough image data"),
    CHUNKS("HZE", "offset 53: Not enough image data"),
    CHUNKS("HeE", "offset 57: IDAT: unknown compression method"),
    CHUNKS("HdeE", NULL),
    CHUNKS("HdceE", "offset 68: Not enough image data"),
    CHUNKS("HZZDE", NULL),
    CHUNKS("HDD", "offset 119: the image is truncated"),
    CHUNKS("HD", "offset 76: the image is truncated"),
    CHUNKS("HCDE", "offset 46: ABCD: unhandled critical chunk"),
    CHUNKS("HcDE", NULL),
    CHUNKS("HPDE", NULL),
    CHUNKS("HQDE", NULL),
    CHUNKS("HTDE", NULL),
    CHUNKS("HDCE", NULL),
    CHUNKS("PHDE", "offset 16: PLTE: missing IHDR"),
    COLOURS(1, "HDE", "offset 41: IDAT: Missing PLTE before IDAT"),
    COLOURS(1, "HQDE", "offset 50: PLTE: invalid"),
    COLOURS(1, "HRDE", "offset 45: Invalid palette"),
    COLOURS(1, "HPDE", NULL),
    COLOURS(1, "HPBDE", NULL),
    COLOURS(1, "HPTDE", NULL),
    COLOURS(1, "HPPDE", "offset 59: PLTE: duplicate"),
    COLOURS(1, "HDPE", "offset 41: IDAT: Missing PLTE before IDAT"),
    COLOURS(8, "HPDE", NULL),
    {{3, 2, 8, 2, 0, 0, 0}, "HDE", 5, 0, 0, 0, 0, "offset 72: bad adaptive filter value"},
    {{3, 2, 8, 2, 0, 0, 0}, "HDE", 255, 0, 0, 0, 0, "offset 72: bad adaptive filter value"},
    {{3, 2, 8, 2, 0, 0, 0}, "HDE", 4, 0, 0, 0, 0, NULL},
    {{3, 2, 8, 2, 0, 0, 0}, "HDE", 0, -1, 0, 0, 0, "offset 71: Not enough image data"},
    {{3, 2, 8, 2, 0, 0, 0}, "HDE", 0, -10, 0, 0, 0, "offset 74: Not enough image data"},
    {{3, 2, 8, 2, 0, 0, 0}, "HDE", 0, 1, 0, 0, 0, NULL},
    {{3, 2, 8, 2, 0, 0, 0}, "HDE", 0, 100, 0, 0, 0, NULL},
    BYTE(1, 'p', "unknown image format"),
    BYTE(7, 0, "unknown image format"),
    BYTE(8, 128, "offset 16: PNG unsigned integer out of range"),
    BYTE(11, 12, "offset 16: IHDR: invalid"),
    BYTE(11, 14, "offset 16: IHDR: invalid"),
    BYTE(12, 'i', "offset 41: IDAT: Missing IHDR before IDAT"),
    BYTE(13, '1', "offset 16: I[31]DR: invalid chunk type"),
    BYTE(29, 1, "offset 33: IHDR: CRC error"),
    BYTE(33, 128, "offset 41: PNG unsigned integer out of range"),
    BYTE(36, 10, "offset 55: IDAT: CRC error"),
    BYTE(37, 'J', "offset 76: JDAT: CRC error"),
    BYTE(37, 'i', "offset 84: IEND: out of place"),
    BYTE(41, 0, "offset 72: IDAT: incorrect header check"),
    BYTE(42, 0, "offset 72: IDAT: incorrect header check"),
    BYTE(43, 7, "offset 72: IDAT: invalid block type"),
    BYTE(44, 19, "offset 72: IDAT: invalid stored block lengths"),
    BYTE(70, 1, "offset 72: IDAT: incorrect data check"),
    BYTE(75, 1, "offset 76: IDAT: CRC error"),
    BYTE(79, 1, "offset 88: the image is truncated"),
    BYTE(80, 'X', "offset 88: XEND: CRC error"),
    BYTE(87, 0, "offset 88: IEND: CRC error"),
    PNG_CUT(8, "offset 8: the image is truncated"),
    PNG_CUT(9, "offset 9: the image is truncated"),
    PNG_CUT(20, "offset 20: the image is truncated"),
    PNG_CUT(32, "offset 32: the image is truncated"),
    PNG_CUT(33, "offset 33: the image is truncated"),
    PNG_CUT(41, "offset 41: the image is truncated"),
    PNG_CUT(50, "offset 50: the image is truncated"),
    PNG_CUT(72, "offset 72: the image is truncated"),
    PNG_CUT(76, "offset 76: the image is truncated"),
    PNG_CUT(80, "offset 80: the image is truncated"),
    PNG_CUT(87, "offset 87: the image is truncated"),
};

TEST(bad_png_files) {
    put_chunks("HDE", (const int[7]){1, 1, 8, 2}, 0, 0);
    if (!reads(png, png_size)) SKIP("no libpng");
    begin();
    fl_scope s = fl_scope_begin();
    for (size_t i = 0; i < sizeof bad_png / sizeof *bad_png; i++) {
        const edit e = {{bad_png[i].at}, {bad_png[i].byte}, bad_png[i].cut, bad_png[i].want};
        put_chunks(bad_png[i].chunks, bad_png[i].head, bad_png[i].filter, bad_png[i].more);
        check_edit(png, png_size, &e, i);
    }
    end(&s);
}

/* The seven passes of an interlaced file: where they begin, and how far their pixels are apart. */
static const int adam7[7][4] = {{0, 0, 8, 8}, {0, 4, 8, 8}, {4, 0, 8, 4}, {0, 2, 4, 4},
                                {2, 0, 4, 2}, {0, 1, 2, 2}, {1, 0, 2, 1}};

/* RGB pixels of a patterned image, interlaced. */
static void put_interlaced(fl_tensor *t) {
    const int h = (int)t->shape[1], w = (int)t->shape[2];
    unsigned char pixels[4000], header[13] = {0, 0, 0, (unsigned char)w, 0, 0, 0, (unsigned char)h, 8, 2, 0,
                                              0, 1};
    size_t left = 0;
    packed(pixels, 3900, 0);
    for (int k = 0; k < 7; k++)
        for (int y = adam7[k][0]; y < h; y += adam7[k][2]) {
            if (adam7[k][1] < w) pixels[7 + left++] = 0;
            for (int x = adam7[k][1]; x < w; x += adam7[k][3])
                for (int c = 0; c < 3; c++)
                    pixels[7 + left++] = ((unsigned char *)fl_data(t))[3 * (y * w + x) + c];
        }
    uint32_t a = 1, b = 0;
    pixels[3] = (unsigned char)left, pixels[4] = (unsigned char)(left >> 8);
    pixels[5] = (unsigned char)~pixels[3], pixels[6] = (unsigned char)~pixels[4];
    for (size_t i = 0; i < left; i++) a = (a + pixels[7 + i]) % 65521, b = (b + a) % 65521;
    put32(pixels + 7 + left, b << 16 | a);
    memcpy(png, "\x89PNG\r\n\x1a\n", 8), png_size = 8;
    put_chunk("IHDR", header, 13), put_chunk("IDAT", pixels, left + 11), put_chunk("IEND", "", 0);
}

TEST(interlaced_png_files) {
    put_chunks("HDE", (int[7]){3, 2, 8, 2, 0, 0, 0}, 0, 0);
    if (!reads(png, png_size)) SKIP("no libpng");
    begin();
    fl_scope s = fl_scope_begin();
    for (int size = 1; size < 35; size++) {
        const int h = size, w = 1 + size * 7 % 31;
        fl_tensor *t = patterned(3, h, w, FL_U8);
        put_interlaced(t);
        fl_tensor *back = fl_vision_decode(png, png_size);
        CHECK(back && same_bits(fl_contiguous(back), fl_contiguous(t)));
        back = fl_vision_decode(png, png_size, .y = h / 3, .x = w / 2, .h = h - h / 3, .w = w - w / 2);
        fl_tensor *part = fl_slice(fl_slice(t, 1, h / 3, h, 1), 2, w / 2, w, 1);
        CHECK(back && same_bits(fl_contiguous(back), fl_contiguous(part)));
        back = fl_vision_decode(png, png_size, .mode = FL_VISION_RGBA, .depth = 16);
        CHECK(back && at(back, 3, h - 1, w - 1) == 65535);
        CHECK(back && at(back, 2, h - 1, w - 1) == 257 * at(t, 2, h - 1, w - 1));
    }
    CHECK(!fl_vision_decode(png, png_size / 2)), CHECK_ERROR("the image is truncated");
    CHECK(fl_vision_decode(png, png_size / 2, .partial = true));
    end(&s);
}

/* Text, profiles and what nobody knows are passed over; EXIF tells the orientation, and a damaged chunk
   nothing. */
TEST(png_chunks_beside_the_pixels) {
    put_chunks("HDE", (int[7]){3, 2, 8, 2, 0, 0, 0}, 0, 0);
    if (!reads(png, png_size)) SKIP("no libpng");
    begin();
    fl_scope s = fl_scope_begin();
    unsigned char exif[] = {'M', 'M', 0, '*', 0, 0, 0, 8, 0, 1, 1, 0x12, 0, 3, 0, 0, 0, 1, 0, 6, 0, 0, 0, 0,
                            0, 0};
    static const char *const kind[] = {"zTXt", "iTXt", "tEXt", "iCCP", "gAMA", "pHYs", "sPLT", "tIME",
                                       "abCd"};
    fl_tensor *t = patterned(3, 2, 3, FL_U8);
    fl_data_text file = {0};
    REQUIRE(fl_vision_encode_png(&file, t));
    for (int k = 0; k < 9; k++)
        for (int o = 1; o <= 9; o++) {
            exif[19] = (unsigned char)o;
            memcpy(png, file.p, 33), png_size = 33;
            put_chunk(kind[k], "k\0\0damaged", 10), put_chunk("eXIf", exif, sizeof exif);
            memcpy(png + png_size, file.p + 33, (size_t)file.n - 33), png_size += (size_t)file.n - 33;
            fl_tensor *back = fl_vision_decode(png, png_size);
            REQUIRE(back);
            CHECK_EQ_INT(back->shape[1], o > 4 && o < 9 ? 3 : 2);
            const int y = o == 3 || o == 4 || o == 6 || o == 7, x = o == 2 || o == 3 || o == 7 || o == 8 ? 2 : 0;
            CHECK_EQ_INT(at(back, 0, 0, 0), at(t, 0, y, x));
        }
    fl_heap_free(file.p);
    end(&s);
}

int main(int argc, char **argv) {
    return test_main(argc, argv);
}
/* MIT licence: see LICENSE. */
