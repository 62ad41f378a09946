/* fl/vision/images.h - image files: decoding of JPEG, PNG, PPM and PGM, encoding of PNG

   JPEG is decoded by libjpeg-turbo, PNG by libpng; without the library, reading such a file is an error that
   names the missing macro. Their longjmps do not leave this file, and their warnings go to fl_log_message. */
#ifndef FL_DATA_H
#include "../../fl_data.h"
#endif
#ifndef FL_VISION_IMAGES_H
#define FL_VISION_IMAGES_H

#ifdef __cplusplus
extern "C" {
#endif

typedef enum fl_vision_mode {
    FL_VISION_RGB,  /* 3 channels: grey is repeated, alpha dropped, CMYK converted as Pillow does */
    FL_VISION_GREY, /* 1 channel: luma of JPEG; of RGB (19595 R + 38470 G + 7471 B + 32768) / 65536 */
    FL_VISION_RGBA, /* 4 channels; alpha is opaque (the largest value) if the file has none */
    FL_VISION_ASIS  /* the file's channels: 1 grey, 2 grey + alpha, 3 RGB (also palettes, CMYK), 4 RGBA */
} fl_vision_mode;

#define FL_VISION_MAX_SIDE 65500 /* largest height or width, in pixels */
#define FL_VISION_MAX_PIXELS 178956970 /* default of max_pixels: Pillow's limit, 512 MiB of RGB */

typedef struct fl_vision_read_opts {
    fl_opts_guard guard_;
    fl_vision_mode mode;
    int depth;          /* 8: upper byte of 16-bit samples; 16: 8-bit samples times 257; 0 -> the file's */
    bool as_stored;     /* ignore the EXIF orientation */
    bool partial;       /* accept a truncated file; missing pixels are grey or 0 */
    int eighths;        /* JPEG only: decode at n / 8 of the size, n in 1 to 8, which is faster; 0 -> 8 */
    int64_t y, x, h, w; /* decode only this region of the upright image; h 0: all of it */
    int64_t max_pixels; /* limit for the whole image; 0 -> FL_VISION_MAX_PIXELS */
    const char *name;   /* name of bytes in memory in errors, borrowed; NULL -> "image" */
    char _end;
} fl_vision_read_opts;
/* Reads an image file as u8 or u16 [c, h, w], stored h, w, c; its first bytes select the decoder. Returns
   NULL after fl_fail if the file is not an image, damaged or too large. Damage that the JPEG decoder repairs
   is reported by fl_log_message. */
#define fl_vision_read(...) FL__VISION_READ(__VA_ARGS__, ._end = 0)
#define FL__VISION_READ(path, ...) fl_vision_read_opt(path, FL_LITERAL(fl_vision_read_opts, __VA_ARGS__))
FL_API fl_tensor *fl_vision_read_opt(const char *path, fl_vision_read_opts o);
/* fl_vision_read of n encoded bytes in memory. */
#define fl_vision_decode(...) FL__VISION_DECODE(__VA_ARGS__, ._end = 0)
#define FL__VISION_DECODE(bytes, n, ...) \
    fl_vision_decode_opt(bytes, n, FL_LITERAL(fl_vision_read_opts, __VA_ARGS__))
FL_API fl_tensor *fl_vision_decode_opt(const void *bytes, size_t n, fl_vision_read_opts o);

typedef struct fl_vision_info {
    const char *format;            /* "jpeg", "png", "pnm" */
    int64_t h, w;                  /* upright, if orientation is applied */
    int channels, depth;           /* as with FL_VISION_ASIS */
    int orientation;               /* EXIF orientation, 1 to 8 */
} fl_vision_info;
/* Parses the header without decoding pixels. as_stored: h and w ignore the EXIF orientation. False after
   fl_fail. */
FL_API bool fl_vision_inspect(const void *bytes, size_t n, bool as_stored, fl_vision_info *out);
/* Reads a file's bytes as u8 [n], without decoding. NULL after fl_fail. */
FL_API fl_tensor *fl_vision_read_bytes(const char *path);

/* Writes u8 or u16 [c, h, w] of 1 to 4 channels, or [h, w], as PNG: compressed by zlib with FL_USE_ZLIB, else
   uncompressed. The file is replaced atomically. False after fl_fail. */
FL_API bool fl_vision_write_png(const char *path, fl_tensor *image);
/* Appends the same PNG bytes to out; free them with fl_heap_free(out->p). False after fl_fail. */
FL_API bool fl_vision_encode_png(fl_data_text *out, fl_tensor *image);

/* Direct access to the bytes of an image u8 [c, h, w] on the host, for custom transforms and data sets. */
typedef struct fl_vision_pixels {
    uint8_t *p;        /* pixel (y, x), channel k: p[y * row + x * c + k] */
    int64_t c, h, w, row;    /* row: stride between rows, in bytes */
} fl_vision_pixels;
/* Gets the pixels of *t; they are valid as long as *t is: a memory manager that pages cannot evict it any
   more. If its layout is not channels-last, *t becomes a copy that the innermost scope owns. False after
   fl_fail if *t is not a non-empty u8 [c, h, w] on the host. */
FL_API bool fl_vision_pixels_of(fl_tensor **t, fl_vision_pixels *out);
/* A new uninitialised image u8 [c, h, w], stored h, w, c; its pixels in *out, if not NULL. */
FL_API fl_tensor *fl_vision_image(int64_t c, int64_t h, int64_t w, fl_vision_pixels *out);

#ifdef __cplusplus
}
#endif
#endif /* FL_VISION_IMAGES_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_VISION_IMAGES) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_VISION_IMAGES_IMPL
#define FL_VISION_IMAGES_IMPL
#include "../ops/copy.h"
#include "../ops/view.h"
#include <limits.h>
#include <setjmp.h>
#include <stdio.h>
#include <string.h>
#ifdef FL_USE_JPEG
#include <jpeglib.h>
#include <jerror.h>
#endif
#ifdef FL_USE_PNG
#include <png.h>
#endif
#ifdef FL_USE_ZLIB
#include <zlib.h>
#endif

/* ---- decoder state ---- */

/* The input and options of a decode, and its result: h x w pixels of c samples of depth bits; 16-bit samples
   in the host's byte order. */
typedef struct fl__vision_job {
    const uint8_t *bytes;
    size_t n;
    const char *name;
    fl_vision_read_opts o;
    fl_vision_info info; /* h and w as stored */
    int64_t at;          /* offset shown in errors; -1: none */
    int64_t y, x, h, w;  /* the region, as stored */
    int c, depth;
    uint8_t *rows;       /* decoded pixels: heap memory, or the data of `direct` */
    fl_tensor *direct;   /* the result, if the rows need no conversion */
} fl__vision_job;

static bool fl__vision_fail(const fl__vision_job *j, const char *format, ...) FL_PRINTF(2, 3);
static bool fl__vision_fail(const fl__vision_job *j, const char *format, ...) {
    char text[400], offset[40] = "";
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (j->at >= 0) snprintf(offset, sizeof offset, "offset %lld: ", (long long)j->at);
    return fl_fail("fl_vision_read: %s: %s%s", j->name, offset, text);
}

/* EXIF orientations 5 to 8 swap rows and columns. */
static bool fl__vision_is_transposed(const fl__vision_job *j) {
    return !j->o.as_stored && j->info.orientation > 4;
}

/* Records the size in the header and checks it against the limits. most: largest number of pixels that a byte
   of the file can encode (a bound on decompression bombs); 0: no bound. */
static bool fl__vision_check_size(fl__vision_job *j, int64_t h, int64_t w, int64_t most) {
    const int64_t limit = j->o.max_pixels > 0 ? j->o.max_pixels : FL_VISION_MAX_PIXELS;
    j->info.h = h, j->info.w = w;
    if (h < 1 || w < 1 || h > FL_VISION_MAX_SIDE || w > FL_VISION_MAX_SIDE)
        return fl__vision_fail(j, "image is %lld x %lld pixels, expected sides of 1 to %d", (long long)w,
                               (long long)h, FL_VISION_MAX_SIDE);
    if (h * w > limit)
        return fl__vision_fail(j, "image is %lld x %lld pixels, more than max_pixels (%lld)", (long long)w,
                               (long long)h, (long long)limit);
    if (most && !j->o.partial && h * w / most > (int64_t)j->n)
        return fl__vision_fail(j, "header says %lld x %lld pixels, too many for a file of %zu bytes",
                               (long long)w, (long long)h, j->n);
    return true;
}

/* By EXIF orientation: bit 0: flipped in x, bit 1: flipped in y (of the upright image), bit 2: transposed. */
static const uint8_t fl__vision_orientations[9] = {0, 0, 1, 3, 2, 4, 5, 7, 6};

/* Maps the requested region of the upright image to the stored, scaled image of h x w pixels. */
static bool fl__vision_map_region(fl__vision_job *j, int64_t h, int64_t w) {
    const bool transposed = fl__vision_is_transposed(j);
    const int64_t H = transposed ? w : h, W = transposed ? h : w;
    int64_t y = j->o.y, x = j->o.x, rh = j->o.h, rw = j->o.w;
    if (!rh) y = x = 0, rh = H, rw = W;
    if (y < 0 || x < 0 || rh < 1 || rw < 1 || y > H - rh || x > W - rw)
        return fl__vision_fail(j, "region w, h = %lld, %lld at x, y = %lld, %lld is outside the image of "
                                 "%lld x %lld pixels",
                               (long long)rw, (long long)rh, (long long)x, (long long)y, (long long)W,
                               (long long)H);
    const int flips = j->o.as_stored ? 0 : fl__vision_orientations[j->info.orientation];
    if (flips & 1) x = W - x - rw;
    if (flips & 2) y = H - y - rh;
    j->y = transposed ? x : y, j->x = transposed ? y : x;
    j->h = transposed ? rw : rh, j->w = transposed ? rh : rw;
    return true;
}

/* Allocates the region's rows: in the result tensor, which is mapped, if they need no conversion. */
static bool fl__vision_alloc_rows(fl__vision_job *j, int c, int depth) {
    static const int count[] = {[FL_VISION_RGB] = 3, [FL_VISION_GREY] = 1, [FL_VISION_RGBA] = 4};
    const bool transposed = !j->o.as_stored && j->info.orientation > 1;
    j->c = c, j->depth = depth;
    if (!transposed && (j->o.mode == FL_VISION_ASIS || count[j->o.mode] == c) &&
        (!j->o.depth || j->o.depth == depth)) {
        j->direct = fl_data_host_tensor(FL_SHAPE(j->h, j->w, c), depth == 16 ? FL_U16 : FL_U8);
        j->rows = j->direct ? fl_map(j->direct, FL_WRITE) : NULL;
        if (!j->rows) j->direct = NULL;
        if (j->rows && j->o.partial) memset(j->rows, 0, (size_t)(j->h * j->w) * (size_t)(c * depth / 8));
        return j->rows != NULL;
    }
    j->rows = fl_heap_alloc((size_t)(j->h * j->w) * (size_t)(c * depth / 8));
    return j->rows != NULL;
}

/* ---- EXIF ---- */

#if defined(FL_USE_JPEG) || defined(FL_USE_PNG)
static unsigned fl__exif_number(const uint8_t *p, int bytes, bool little) {
    unsigned v = 0;
    for (int i = 0; i < bytes; i++) v |= (unsigned)p[little ? i : bytes - 1 - i] << (8 * i);
    return v;
}

/* The orientation in a TIFF block (tag 0x0112, a short, of the first directory); 1 if absent. */
static int fl__exif_orientation(const uint8_t *p, size_t n) {
    if (n < 8 || (memcmp(p, "II*", 4) && memcmp(p, "MM\0*", 4))) return 1;
    const bool little = *p == 'I';
    const size_t at = fl__exif_number(p + 4, 4, little);
    if (at > n || n - at < 2) return 1;
    const size_t entries = fl__exif_number(p + at, 2, little);
    for (size_t i = 0; i < entries && (i + 1) * 12 <= n - at - 2; i++) {
        const uint8_t *e = p + at + 2 + i * 12;
        if (fl__exif_number(e, 2, little) != 0x0112) continue;
        const unsigned v = fl__exif_number(e + 8, 2, little);
        return fl__exif_number(e + 2, 2, little) == 3 && v >= 1 && v <= 8 ? (int)v : 1;
    }
    return 1;
}
#endif

/* ---- JPEG ---- */

#ifdef FL_USE_JPEG
/* Limits on decompression bombs. A file of n bytes has at most 1024 n pixels: half a bit for a block of 64.
   A progressive file has about 10 scans, and each visits all blocks even if it changes none: a scan beyond
   the 16th needs 64 bytes and a byte for every 512 pixels. */
enum { FL__JPEG_BYTE = 1024, FL__JPEG_SCANS = 16, FL__JPEG_SCAN_BYTES = 64, FL__JPEG_SCAN_BYTE = 512 };

typedef struct fl__jpeg {
    struct jpeg_decompress_struct d;
    struct jpeg_error_mgr errors;
    struct jpeg_progress_mgr progress;
    jmp_buf back;
    fl__vision_job *job;
    uint8_t *row; /* temporary row: CMYK, or wider than the region */
} fl__jpeg;

static void fl__jpeg_stop(j_common_ptr d, const char *text) {
    fl__jpeg *g = d->client_data;
    if (g->d.src) g->job->at = (int64_t)(g->job->n - g->d.src->bytes_in_buffer);
    fl__vision_fail(g->job, "%s", text);
    longjmp(g->back, 1);
}

static void fl__jpeg_error(j_common_ptr d) {
    char text[JMSG_LENGTH_MAX];
    d->err->format_message(d, text);
    fl__jpeg_stop(d, d->err->msg_code == JERR_NO_BACKING_STORE ? "out of memory for coefficients: more than "
                                                                 "64 bytes per pixel" : text);
}

/* A premature end of the file is an error; other damage is repaired and reported once. */
static void fl__jpeg_warn(j_common_ptr d, int level) {
    const fl__jpeg *g = d->client_data;
    if (level >= 0) return;
    if (d->err->msg_code == JWRN_JPEG_EOF && !g->job->o.partial) fl__jpeg_stop(d, "the image is truncated");
    char text[JMSG_LENGTH_MAX];
    d->err->format_message(d, text);
    if (!d->err->num_warnings++) fl_log_message(FL_LOG_INFO, "%s: %s", g->job->name, text);
}

static void fl__jpeg_no_message(j_common_ptr d) {
    (void)d;
}

static void fl__jpeg_progress(j_common_ptr d) {
    const fl__jpeg *g = d->client_data;
    const int64_t side = g->d.max_h_samp_factor * DCTSIZE, top = g->d.max_v_samp_factor * DCTSIZE;
    const int64_t pixels = (g->d.image_width + side - 1) / side * side * (g->d.total_iMCU_rows * top);
    const int64_t each = pixels / FL__JPEG_SCAN_BYTE, n = (int64_t)g->job->n;
    const int64_t most = FL__JPEG_SCANS + n / (each > FL__JPEG_SCAN_BYTES ? each : FL__JPEG_SCAN_BYTES);
    if (g->d.input_scan_number <= most) return;
    char text[120];
    snprintf(text, sizeof text, "scan %d of %u x %u pixels: a file of %lld bytes may have at most %lld scans",
             g->d.input_scan_number, g->d.image_width, g->d.image_height, (long long)n, (long long)most);
    fl__jpeg_stop(d, text);
}

/* Reads the header up to the first scan, and the EXIF orientation. */
static bool fl__jpeg_header(fl__jpeg *g) {
    fl__vision_job *j = g->job;
    j->at = -1;
    jpeg_mem_src(&g->d, j->bytes, (unsigned long)j->n);
    jpeg_save_markers(&g->d, JPEG_APP0 + 1, 0xffff);
    jpeg_read_header(&g->d, TRUE);
    const int kinds = g->d.num_components;
    j->info =
        (fl_vision_info){.format = "jpeg", .channels = kinds == 1 ? 1 : 3, .depth = 8, .orientation = 1};
    for (jpeg_saved_marker_ptr m = g->d.marker_list; m; m = m->next)
        if (m->marker == JPEG_APP0 + 1 && m->data_length > 6 && !memcmp(m->data, "Exif\0", 6)) {
            j->info.orientation = fl__exif_orientation(m->data + 6, m->data_length - 6);
            break;
        }
    const int64_t most = (1 << 20) + 64 * ((int64_t)j->n + (int64_t)g->d.image_height * g->d.image_width);
    g->d.mem->max_memory_to_use = most < LONG_MAX ? (long)most : LONG_MAX;
    return fl__vision_check_size(j, g->d.image_height, g->d.image_width, FL__JPEG_BYTE);
}

/* Converts n pixels from inverted CMYK to RGB: (255 - ink) (255 - black) / 255. */
static void fl__jpeg_cmyk_to_rgb(const uint8_t *from, uint8_t *to, int64_t n) {
    for (int64_t i = 0; i < n; i++, from += 4, to += 3)
        for (int k = 0; k < 3; k++) {
            const int white = from[3], v = (255 - from[k]) * white + 128;
            to[k] = (uint8_t)(white - ((v + (v >> 8)) >> 8));
        }
}

static bool fl__jpeg_rows(fl__jpeg *g) {
    fl__vision_job *j = g->job;
    struct jpeg_decompress_struct *d = &g->d;
    const bool cmyk = d->jpeg_color_space == JCS_CMYK || d->jpeg_color_space == JCS_YCCK;
    const bool grey =
        !cmyk && (j->o.mode == FL_VISION_GREY || (j->o.mode == FL_VISION_ASIS && d->num_components == 1));
    d->out_color_space = cmyk ? JCS_CMYK : grey && d->jpeg_color_space != JCS_RGB ? JCS_GRAYSCALE : JCS_RGB;
    if (j->o.eighths) d->scale_num = (unsigned)j->o.eighths, d->scale_denom = 8;
    g->progress.progress_monitor = fl__jpeg_progress;
    d->progress = &g->progress;
    jpeg_calc_output_dimensions(d);
    const int from = cmyk ? 4 : d->out_color_space == JCS_GRAYSCALE ? 1 : 3, c = cmyk ? 3 : from;
    if (!fl__vision_map_region(j, d->output_height, d->output_width) || !fl__vision_alloc_rows(j, c, 8))
        return false;
    jpeg_start_decompress(d);
    /* Chroma upsampling reads neighbours: decode a margin of columns on both sides, and rows above. */
    JDIMENSION left = 0, width = d->output_width;
    if (j->w < width) {
        const JDIMENSION most = width, margin = 16;
        left = j->x > margin ? (JDIMENSION)j->x - margin : 0;
        width = (JDIMENSION)(j->x + j->w) + margin - left;
        if (width > most - left) width = most - left;
        jpeg_crop_scanline(d, &left, &width);
    }
    if (cmyk || width != j->w) {
        g->row = fl_heap_alloc((size_t)width * (size_t)from);
        if (!g->row) return false;
    }
    const JDIMENSION above = j->y > 16 ? (JDIMENSION)j->y - 16 : 0;
    if (above) jpeg_skip_scanlines(d, above);
    uint8_t *spare = g->row ? g->row : j->rows;
    for (int64_t y = above; y < j->y + j->h; y++) {
        uint8_t *to = y < j->y ? spare : j->rows + (y - j->y) * j->w * c, *row = g->row ? g->row : to;
        if (!jpeg_read_scanlines(d, &row, 1)) break;
        if (y < j->y || !g->row) continue;
        const uint8_t *p = g->row + (j->x - left) * from;
        if (cmyk) fl__jpeg_cmyk_to_rgb(p, to, j->w);
        else memcpy(to, p, (size_t)(j->w * c));
    }
    jpeg_abort_decompress(d);
    return true;
}

static bool fl__vision_jpeg(fl__vision_job *j, bool pixels) {
    fl__jpeg *g = fl_heap_alloc(sizeof *g);
    if (!g) return false;
    g->job = j;
    g->d.err = jpeg_std_error(&g->errors);
    g->errors.error_exit = fl__jpeg_error;
    g->errors.emit_message = fl__jpeg_warn;
    g->errors.output_message = fl__jpeg_no_message;
    g->d.client_data = g;
    bool ok = false;
    if (!setjmp(g->back)) {
        jpeg_create_decompress(&g->d);
        ok = fl__jpeg_header(g) && (!pixels || fl__jpeg_rows(g));
    }
    jpeg_destroy_decompress(&g->d);
    fl_heap_free(g->row);
    fl_heap_free(g);
    return ok;
}
#else
static bool fl__vision_jpeg(fl__vision_job *j, bool pixels) {
    (void)pixels;
    return fl__vision_fail(j, "is a JPEG file, but this program was built without libjpeg: install "
                             "libjpeg62-turbo-dev, compile with -DFL_USE_JPEG and link -ljpeg");
}
#endif

/* ---- PNG ---- */

#ifdef FL_USE_PNG
typedef struct fl__png {
    fl__vision_job *job;
    size_t at;
    jmp_buf back;
    uint8_t *row;
} fl__png;

static void fl__png_error(png_structp p, png_const_charp text) {
    fl__png *g = png_get_error_ptr(p);
    g->job->at = (int64_t)g->at;
    fl__vision_fail(g->job, "%s", text);
    longjmp(g->back, 1);
}

static void fl__png_warn(png_structp p, png_const_charp text) {
    const fl__png *g = png_get_error_ptr(p);
    fl_log_message(FL_LOG_INFO, "%s: %s", g->job->name, text);
}

static void fl__png_read(png_structp p, png_bytep to, size_t n) {
    fl__png *g = png_get_io_ptr(p);
    if (n > g->job->n - g->at) {
        g->at = g->job->n;
        png_error(p, "the image is truncated");
    }
    memcpy(to, g->job->bytes + g->at, n);
    g->at += n;
}

/* libpng allocates a chunk by its declared length before reading it: refuses more than rows, tables and the
   chunks of this file can need. */
static png_voidp fl__png_alloc(png_structp p, png_alloc_size_t n) {
    const fl__png *g = png_get_mem_ptr(p);
    return n > 16 * FL_VISION_MAX_SIDE + g->job->n ? NULL : fl_heap_alloc(n);
}

static void fl__png_free(png_structp p, png_voidp at) {
    (void)p;
    fl_heap_free(at);
}

/* Reads the header; pixels will be grey or RGB, with alpha if any, 8 or 16 bits in the host's byte order. */
static bool fl__png_header(fl__png *g, png_structp p, png_infop info) {
    fl__vision_job *j = g->job;
    png_set_user_limits(p, FL_VISION_MAX_SIDE, FL_VISION_MAX_SIDE);
    /* Skip chunks that do not change pixels: libpng would store them, and inflate text and profiles. */
    png_set_keep_unknown_chunks(p, PNG_HANDLE_CHUNK_NEVER, NULL, -1);
    png_set_keep_unknown_chunks(p, PNG_HANDLE_CHUNK_AS_DEFAULT, (png_const_bytep) "eXIf", 1);
    png_set_read_fn(p, g, fl__png_read);
    png_read_info(p, info);
    png_set_expand(p);
    if (png_get_bit_depth(p, info) == 16 && (union {short s; char c;}){1}.c) png_set_swap(p);
    png_set_interlace_handling(p);
    const int64_t w = png_get_image_width(p, info), h = png_get_image_height(p, info);
    const int bits = png_get_bit_depth(p, info) * png_get_channels(p, info);
    j->at = -1;
    if (!fl__vision_check_size(j, h, w, 8 * FL_DATA_DEFLATE_LIMIT / bits + 1)) return false;
    png_read_update_info(p, info);
    j->info.format = "png";
    j->info.channels = png_get_channels(p, info), j->info.depth = png_get_bit_depth(p, info);
    j->info.orientation = 1;
#ifdef PNG_eXIf_SUPPORTED
    png_uint_32 n = 0;
    png_bytep exif = NULL;
    if (png_get_eXIf_1(p, info, &n, &exif)) j->info.orientation = fl__exif_orientation(exif, n);
#endif
    return true;
}

/* An interlaced image is decoded in passes over all its rows; otherwise one row at a time is enough. */
static bool fl__png_rows(fl__png *g, png_structp p, png_infop info) {
    fl__vision_job *j = g->job;
    const int c = j->info.channels, depth = j->info.depth;
    const size_t pixel = (size_t)(c * depth / 8), line = (size_t)j->info.w * pixel;
    const bool passes = png_get_interlace_type(p, info) != PNG_INTERLACE_NONE;
    if (!fl__vision_map_region(j, j->info.h, j->info.w) || !fl__vision_alloc_rows(j, c, depth)) return false;
    const bool whole = j->h == j->info.h && j->w == j->info.w; /* decode in place */
    g->row = whole ? NULL : fl_heap_alloc(passes ? line * (size_t)j->info.h : line);
    if (!whole && !g->row) return false;
    uint8_t *const to = whole ? j->rows : g->row;
    const size_t step = whole || passes ? line : 0;
    for (int pass = 0; pass < (passes ? 7 : 0); pass++)
        for (int64_t y = 0; y < j->info.h; y++) png_read_row(p, to + (size_t)y * step, NULL);
    for (int64_t y = 0; y < j->y + j->h; y++) {
        uint8_t *row = to + (size_t)y * step;
        if (!passes) png_read_row(p, row, NULL);
        if (whole || y < j->y) continue;
        memcpy(j->rows + (size_t)((y - j->y) * j->w) * pixel, row + (size_t)j->x * pixel,
               (size_t)j->w * pixel);
    }
    if (j->y + j->h == j->info.h) png_read_end(p, NULL);
    return true;
}

static bool fl__vision_png(fl__vision_job *j, bool pixels) {
    fl__png *g = fl_heap_alloc(sizeof *g);
    if (!g) return false;
    g->job = j;
    bool ok = false;
    png_infop info = NULL;
    png_structp volatile p = NULL;
    png_infop volatile saved_info = NULL;
    if (!setjmp(g->back)) {
        p = png_create_read_struct_2(PNG_LIBPNG_VER_STRING, g, fl__png_error, fl__png_warn, g,
                                     fl__png_alloc, fl__png_free);
        saved_info = info = p ? png_create_info_struct(p) : NULL;
        if (info) ok = fl__png_header(g, p, info) && (!pixels || fl__png_rows(g, p, info));
        else fl_fail("fl_vision_read: %s: out of memory", j->name);
    } else ok = j->o.partial && j->rows; /* decoded rows, then zeros */
    if (ok && fl_error()) fl_error_clear();
    info = saved_info;
    png_structp made = p;
    if (made) png_destroy_read_struct(&made, info ? &info : NULL, NULL);
    fl_heap_free(g->row);
    fl_heap_free(g);
    return ok;
}
#else
static bool fl__vision_png(fl__vision_job *j, bool pixels) {
    (void)pixels;
    return fl__vision_fail(
        j, "is a PNG file, but this program was built without libpng: install libpng-dev, "
           "compile with -DFL_USE_PNG and link -lpng");
}
#endif

/* ---- PPM and PGM ---- */

/* Parses a decimal number (of the header, or a sample in text form) after white space and comments. */
static bool fl__pnm_number(fl__vision_job *j, int64_t most, int64_t *out) {
    const uint8_t *p = j->bytes;
    size_t at = (size_t)j->at;
    while (at < j->n && (p[at] == '#' || p[at] <= ' ')) {
        if (p[at++] != '#') continue;
        while (at < j->n && p[at] != '\n') at++;
    }
    j->at = (int64_t)at;
    int64_t v = 0;
    size_t digits = 0;
    for (; at < j->n && p[at] >= '0' && p[at] <= '9'; at++, digits++)
        if ((v = 10 * v + p[at] - '0') > most)
            return fl__vision_fail(j, "number is too large: expected at most %lld", (long long)most);
    if (!digits) return fl__vision_fail(j, at < j->n ? "expected a number" : "the image is truncated");
    j->at = (int64_t)at;
    *out = v;
    return true;
}

static bool fl__pnm_header(fl__vision_job *j, int64_t *maximum) {
    int64_t h = 0, w = 0;
    const int kind = j->bytes[1] - '0';
    j->at = 2;
    if (!fl__pnm_number(j, INT32_MAX, &w) || !fl__pnm_number(j, INT32_MAX, &h) ||
        !fl__pnm_number(j, 65535, maximum)) return false;
    j->info = (fl_vision_info){.format = "pnm", .channels = kind == 2 || kind == 5 ? 1 : 3,
                               .depth = *maximum > 255 ? 16 : 8, .orientation = 1};
    if (*maximum < 1) return fl__vision_fail(j, "the maximum value is 0, expected 1 to 65535");
    if (!fl__vision_check_size(j, h, w, 1)) return false;
    if (kind > 3) j->at++; /* one white space */
    const int64_t need = h * w * j->info.channels * (kind > 3 ? j->info.depth / 8 : 2) - (kind < 4);
    return j->o.partial || need <= (int64_t)j->n - j->at ||
           fl__vision_fail(j, "the image is truncated: got %lld of %lld bytes", (long long)j->n - j->at,
                           (long long)need);
}

/* Stores sample i, scaled from [0, maximum] to the full range. */
static void fl__pnm_put(fl__vision_job *j, int64_t i, int64_t v, int64_t maximum) {
    const int64_t full = j->depth == 16 ? 65535 : 255;
    if (v > maximum) v = maximum;
    if (maximum != full) v = (2 * v * full + maximum) / (2 * maximum);
    if (j->depth == 16) ((uint16_t *)(void *)j->rows)[i] = (uint16_t)v;
    else j->rows[i] = (uint8_t)v;
}

static bool fl__vision_pnm(fl__vision_job *j, bool pixels) {
    int64_t maximum = 0;
    if (!fl__pnm_header(j, &maximum)) return false;
    if (!pixels) return true;
    const bool text = j->bytes[1] < '4';
    const int bytes = j->info.depth / 8;
    const int64_t c = j->info.channels, line = j->info.w * c, from = j->at;
    if (!fl__vision_map_region(j, j->info.h, j->info.w) || !fl__vision_alloc_rows(j, (int)c, j->info.depth))
        return false;
    for (int64_t y = 0; y < j->y + j->h; y++)
        for (int64_t x = 0; x < line; x++) {
            const int64_t i = y * line + x;
            int64_t v = 0;
            if (text) {
                if (!fl__pnm_number(j, maximum, &v)) {
                    if (!j->o.partial) return false;
                    fl_error_clear();
                    return true;
                }
            } else if (from + (i + 1) * bytes <= (int64_t)j->n) {
                const uint8_t *p = j->bytes + from + i * bytes;
                v = bytes == 2 ? p[0] << 8 | p[1] : p[0];
            }
            if (y >= j->y && x >= j->x * c && x < (j->x + j->w) * c)
                fl__pnm_put(j, ((y - j->y) * j->w - j->x) * c + x, v, maximum);
        }
    return true;
}

/* ---- decoded rows to the requested tensor ---- */

static bool fl__vision_parse(fl__vision_job *j, bool pixels) {
    const uint8_t *p = j->bytes;
    j->at = -1;
    j->info.orientation = 1;
    if (j->o.eighths < 0 || j->o.eighths > 8)
        return fl__vision_fail(j, "eighths must be in 1 to 8 (0: 8), got %d", j->o.eighths);
    if (j->n >= 3 && !memcmp(p, "\xff\xd8\xff", 3)) return fl__vision_jpeg(j, pixels);
    if (j->n >= 8 && !memcmp(p, "\x89PNG\r\n\x1a\n", 8)) return fl__vision_png(j, pixels);
    if (j->n >= 3 && p[0] == 'P' && strchr("2356", p[1]) && p[1] && (p[2] <= ' ' || p[2] == '#'))
        return fl__vision_pnm(j, pixels);
    return fl__vision_fail(j, "unknown image format (%zu bytes); known: JPEG, PNG, PPM, PGM", j->n);
}

static int fl__vision_get(const uint8_t *p, int64_t i, int depth) {
    return depth == 16 ? ((const uint16_t *)(const void *)p)[i] : p[i];
}

static void fl__vision_put(uint8_t *p, int64_t i, int depth, int v) {
    if (depth == 16) ((uint16_t *)(void *)p)[i] = (uint16_t)v;
    else p[i] = (uint8_t)v;
}

/* Converts a pixel of `from` channels to `to` channels. */
static void fl__vision_convert(const int *in, int from, int *out, int to, int full) {
    const bool grey = from < 3;
    const int alpha = from == 2 ? in[1] : from == 4 ? in[3] : full;
    if (to < 3)
        out[0] = grey ? in[0]
                      : (int)((19595u * (unsigned)in[0] + 38470u * (unsigned)in[1] +
                               7471u * (unsigned)in[2] + 32768u) >>
                              16);
    else for (int k = 0; k < 3; k++) out[k] = in[grey ? 0 : k];
    if (to == 2 || to == 4) out[to - 1] = alpha;
}

/* The upright tensor [c, h, w] of the decoded rows. */
static fl_tensor *fl__vision_finish(const fl__vision_job *j) {
    static const int count[] = {[FL_VISION_RGB] = 3, [FL_VISION_GREY] = 1, [FL_VISION_RGBA] = 4};
    static const int planes[] = {2, 0, 1};
    const int c = j->o.mode == FL_VISION_ASIS ? j->c : count[j->o.mode],
              depth = j->o.depth ? j->o.depth : j->depth;
    if (j->direct) return fl_permute(j->direct, 3, planes);
    const bool transposed = fl__vision_is_transposed(j);
    const int flips = j->o.as_stored ? 0 : fl__vision_orientations[j->info.orientation];
    const int64_t h = transposed ? j->w : j->h, w = transposed ? j->h : j->w;
    fl_tensor *t = fl_data_host_tensor(FL_SHAPE(h, w, c), depth == 16 ? FL_U16 : FL_U8);
    uint8_t *to = t ? fl_map(t, FL_WRITE) : NULL;
    if (!to) return NULL;
    for (int64_t y = 0; y < h; y++)
        for (int64_t x = 0; x < w; x++) {
            const int64_t v = flips & 2 ? h - 1 - y : y, u = flips & 1 ? w - 1 - x : x;
            const int64_t from = transposed ? u * j->w + v : v * j->w + u;
            int in[4], out[4];
            for (int k = 0; k < j->c; k++) {
                in[k] = fl__vision_get(j->rows, from * j->c + k, j->depth);
                if (depth != j->depth) in[k] = depth == 8 ? in[k] >> 8 : in[k] * 257;
            }
            fl__vision_convert(in, j->c, out, c, depth == 16 ? 65535 : 255);
            for (int k = 0; k < c; k++) fl__vision_put(to, (y * w + x) * c + k, depth, out[k]);
        }
    fl_unmap(t, FL_WRITE);
    return fl_permute(t, 3, planes);
}

FL_API fl_tensor *fl_vision_decode_opt(const void *bytes, size_t n, fl_vision_read_opts o) {
    fl__vision_job j = {.bytes = bytes, .n = n, .name = o.name ? o.name : "image", .o = o};
    if (!bytes || (o.depth && o.depth != 8 && o.depth != 16) || o.mode > FL_VISION_ASIS) {
        fl_fail("fl_vision_decode: %s: got depth %d, mode %d, expected depth 0, 8 or 16, mode 0 to %d",
                bytes ? j.name : "bytes is NULL", o.depth, (int)o.mode, (int)FL_VISION_ASIS);
        return NULL;
    }
    fl_quiet(+1);
    fl_scope s = fl_scope_begin();
    const bool ok = s.depth_ > 0 && fl__vision_parse(&j, true);
    if (j.direct) fl_unmap(j.direct, FL_WRITE);
    fl_tensor *t = fl_scope_return(&s, ok ? fl__vision_finish(&j) : NULL);
    if (!j.direct) fl_heap_free(j.rows);
    fl_quiet(-1);
    return t;
}

FL_API bool fl_vision_inspect(const void *bytes, size_t n, bool as_stored, fl_vision_info *out) {
    fl__vision_job j = {.bytes = bytes, .n = n, .name = "image",
                       .o = {.as_stored = as_stored, .max_pixels = INT64_MAX}};
    if (!bytes || !out) return fl_fail("fl_vision_inspect: bytes or out is NULL");
    if (!fl__vision_parse(&j, false)) return false;
    *out = j.info;
    if (fl__vision_is_transposed(&j)) out->h = j.info.w, out->w = j.info.h;
    return true;
}

FL_API fl_tensor *fl_vision_read_bytes(const char *path) {
    fl_data_stream f;
    if (!fl_data_stream_open(&f, "fl_vision_read", path, FL_DATA_READ)) return NULL;
    fl_quiet(+1);
    fl_tensor *t = fl_data_host_tensor(FL_SHAPE(f.size), FL_U8);
    void *p = t ? fl_map(t, FL_WRITE) : NULL;
    const bool ok = p && (!f.size || fl_data_stream_read(&f, p, (size_t)f.size, 0));
    if (p) fl_unmap(t, FL_WRITE);
    f.io.close(f.io.user, f.file);
    fl_quiet(-1);
    return ok ? t : NULL;
}

FL_API fl_tensor *fl_vision_read_opt(const char *path, fl_vision_read_opts o) {
    fl_quiet(+1);
    fl_scope s = fl_scope_begin();
    fl_tensor *bytes = fl_vision_read_bytes(path), *t = NULL;
    o.name = path;
    const void *p = bytes ? fl_map(bytes, FL_READ) : NULL;
    if (p) t = fl_vision_decode_opt(p, (size_t)fl_numel(bytes), o), fl_unmap(bytes, FL_READ);
    t = fl_scope_return(&s, t);
    fl_quiet(-1);
    return t;
}

/* ---- pixels ---- */

/* The address of t's elements for as long as t lives: a buffer that could be paged out stays mapped. */
static uint8_t *fl__vision_pin(fl_tensor *t, int access) {
    uint8_t *p = fl_map(t, access);
    if (p && !t->buffer->pageable) fl_unmap(t, access);
    return p;
}

FL_API fl_tensor *fl_vision_image(int64_t c, int64_t h, int64_t w, fl_vision_pixels *out) {
    static const int planes[] = {2, 0, 1};
    if (c < 1 || h < 1 || w < 1 || h > FL_VISION_MAX_SIDE || w > FL_VISION_MAX_SIDE) {
        fl_fail("fl_vision_image: invalid size: %lld channels of %lld x %lld pixels, expected c >= 1, sides "
                "of 1 to %d", (long long)c, (long long)h, (long long)w, FL_VISION_MAX_SIDE);
        return NULL;
    }
    fl_tensor *t = fl_data_host_tensor(FL_SHAPE(h, w, c), FL_U8);
    t = t ? fl_permute(t, 3, planes) : NULL;
    if (t && out) *out = (fl_vision_pixels){fl__vision_pin(t, FL_WRITE), c, h, w, w * c};
    return t && (!out || out->p) ? t : NULL;
}

FL_API bool fl_vision_pixels_of(fl_tensor **t, fl_vision_pixels *out) {
    if (!fl_given(t, "fl_vision_pixels_of", "the image") ||
        !fl_given(out, "fl_vision_pixels_of", "the result")) return false;
    static const int planes[] = {2, 0, 1}, pixels[] = {1, 2, 0};
    fl_tensor *x = *t;
    if (!x) return fl_fail("fl_vision_pixels_of: the image is NULL");
    if (x->dtype != FL_U8 || x->ndim != 3 || !fl_numel(x) || !x->buffer || strcmp(fl_backend_name(x), "cpu"))
        return fl_fail("fl_vision_pixels_of: got %s %s on %s, expected a non-empty image u8 [c, h, w] on cpu",
                       fl_dtype_name(x->dtype), FL_SHAPE_TEXT(x), fl_backend_name(x));
    const int64_t c = x->shape[0], h = x->shape[1], w = x->shape[2];
    if ((c > 1 && x->stride[0] != 1) || (w > 1 && x->stride[2] != c) || (h > 1 && x->stride[1] < w * c)) {
        x = fl_permute(fl_contiguous(fl_permute(x, 3, pixels)), 3, planes);
        if (!x) return false;
        *t = x;
    }
    *out = (fl_vision_pixels){fl__vision_pin(x, FL_READ), c, h, w, h > 1 ? x->stride[1] : w * c};
    return out->p != NULL;
}

/* ---- writing PNG ---- */

static void fl__png_put32(uint8_t *p, uint32_t v) {
    p[0] = (uint8_t)(v >> 24), p[1] = (uint8_t)(v >> 16), p[2] = (uint8_t)(v >> 8),
    p[3] = (uint8_t)v;
}

/* Appends a chunk: length, type, data, CRC-32 of type and data. */
static bool fl__png_chunk(fl_data_text *out, const char *kind, const uint8_t *bytes, size_t n) {
    uint8_t word[4];
    fl__png_put32(word, (uint32_t)n);
    if (!fl_data_text_put(out, word, 4) || !fl_data_text_put(out, kind, 4) ||
        !fl_data_text_put(out, bytes, n))
        return false;
    fl__png_put32(word, fl_data_crc32(0, out->p + out->n - n - 4, n + 4));
    return fl_data_text_put(out, word, 4);
}

/* The rows as a zlib stream in heap memory; stored blocks without zlib. */
static uint8_t *fl__png_pack(const uint8_t *raw, size_t n, size_t *packed) {
#ifdef FL_USE_ZLIB
    uLongf size = compressBound((uLong)n);
    uint8_t *to = fl_heap_alloc(size);
    if (to && compress2(to, &size, raw, (uLong)n, 6) != Z_OK) {
        fl_heap_free(to), to = NULL;
        fl_fail("fl_vision_write_png: zlib failed on %zu bytes: out of memory", n);
    }
    *packed = size;
#else
    enum { BLOCK = 65535 };
    const size_t blocks = (n + BLOCK - 1) / BLOCK;
    uint8_t *to = fl_heap_alloc(n + 5 * blocks + 6), *p = to;
    if (!to) return NULL;
    uint32_t a = 1, b = 0; /* Adler-32 */
    for (size_t i = 0; i < n; i++) a = (a + raw[i]) % 65521, b = (b + a) % 65521;
    *p++ = 0x78, *p++ = 0x01;
    for (size_t at = 0; at < n; at += BLOCK) {
        const unsigned size = n - at < BLOCK ? (unsigned)(n - at) : BLOCK;
        const uint8_t head[] = {at + size == n, size & 255, size >> 8, ~size & 255, (~size >> 8) & 255};
        memcpy(p, head, 5), memcpy(p + 5, raw + at, size);
        p += 5 + size;
    }
    fl__png_put32(p, b << 16 | a);
    *packed = (size_t)(p + 4 - to);
#endif
    return to;
}

static bool fl__png_encode(fl_data_text *out, fl_tensor *image) {
    static const int pixels[] = {1, 2, 0};
    static const uint8_t color[] = {0, 0, 4, 2, 6};
    if (!image || (image->dtype != FL_U8 && image->dtype != FL_U16) || image->ndim < 2 || image->ndim > 3)
        return fl_fail("fl_vision_write_png: got %s %s, expected an image u8 or u16 [c, h, w] or [h, w]",
                       image ? fl_dtype_name(image->dtype) : "NULL", image ? FL_SHAPE_TEXT(image) : "");
    fl_tensor *t = image->ndim == 2 ? fl_unsqueeze(image, 0) : image;
    const int64_t c = t ? t->shape[0] : 0, h = t ? t->shape[1] : 0, w = t ? t->shape[2] : 0;
    if (t && (c < 1 || c > 4 || h < 1 || w < 1 || h > FL_VISION_MAX_SIDE || w > FL_VISION_MAX_SIDE))
        return fl_fail("fl_vision_write_png: got an image %s, expected 1 to 4 channels and sides of 1 to %d",
                       FL_SHAPE_TEXT(image), FL_VISION_MAX_SIDE);
    t = t ? fl_contiguous(fl_permute(t, 3, pixels)) : NULL;
    const uint8_t *from = t ? fl_map(t, FL_READ) : NULL;
    if (!from) return false;
    const size_t bytes = fl_dtype_size(t->dtype), line = (size_t)(w * c) * bytes;
    uint8_t *raw = fl_heap_alloc((size_t)h * (line + 1)), head[13] = {0};
    for (int64_t y = 0; raw && y < h; y++) { /* no filter; big-endian */
        uint8_t *row = raw + (size_t)y * (line + 1);
        row[0] = 0;
        memcpy(row + 1, from + (size_t)y * line, line);
        if (bytes == 2) fl_data_swap_bytes(row + 1, line, 2);
    }
    fl_unmap(t, FL_READ);
    size_t n = 0;
    uint8_t *packed = raw ? fl__png_pack(raw, (size_t)h * (line + 1), &n) : NULL;
    fl_heap_free(raw);
    fl__png_put32(head, (uint32_t)w), fl__png_put32(head + 4, (uint32_t)h);
    head[8] = (uint8_t)(8 * bytes), head[9] = color[c];
    bool ok = packed && n < (size_t)INT32_MAX;
    ok = ok && fl_data_text_put(out, "\x89PNG\r\n\x1a\n", 8) && fl__png_chunk(out, "IHDR", head, 13) &&
         fl__png_chunk(out, "IDAT", packed, n) && fl__png_chunk(out, "IEND", NULL, 0);
    fl_heap_free(packed);
    return ok;
}

FL_API bool fl_vision_encode_png(fl_data_text *out, fl_tensor *image) {
    if (!out) return fl_fail("fl_vision_encode_png: out is NULL");
    const int64_t before = out->n;
    fl_quiet(+1);
    fl_scope s = fl_scope_begin();
    const bool ok = s.depth_ > 0 && fl__png_encode(out, image);
    fl_scope_end(&s);
    fl_quiet(-1);
    if (!ok) out->n = before;
    return ok;
}

FL_API bool fl_vision_write_png(const char *path, fl_tensor *image) {
    fl_data_text png = {0};
    const bool ok = fl_vision_encode_png(&png, image) &&
                    fl_data_replace("fl_vision_write_png", path, png.p, (size_t)png.n);
    fl_heap_free(png.p);
    return ok;
}

#endif
#endif

/* MIT licence: see LICENSE. */
