/* fl_data.h - tensors in files, data sets, loaders, meters, logs and curves

   Reads safetensors, NumPy's files, idx, CSV and JSON as untrusted data, saves so that a kill at any
   moment leaves the old file or the new one, and composes data sets: slices, shuffles, batches,
   transforms, threads.

   >>example
    #define FL_IMPLEMENTATION
    #include "fl_data.h"
    int main(void) {
        fl_scope s = fl_scope_begin();
        fl_tensor *x = fl_reshape(fl_arange(0, 12, 1, FL_F32), FL_SHAPE(6, 2));
        fl_tensor *y = fl_arange(0, 6, 1, FL_I64);
        fl_data_set *set = fl_data_shuffle(fl_data_tensors((fl_tensor *[]){x, y}, 2), 42);
        set = fl_data_prefetch(fl_data_batch(set, 2, true), 2, 4); // 2 threads, 4 batches ahead
        for (int64_t i = 0; i < fl_data_size(set); i++) {
            fl_scope step = fl_scope_begin();
            fl_data_sample b;
            if (fl_data_get(set, i, &b)) fl_print(b.t[0]); // [2, 2]
            fl_scope_end(&step);
        }
        fl_data_free(set); // frees the sets below it too
        fl_scope_end(&s);
        return 0;
    }
   <<example

   Contents: one room of fl/data/ each.
     idx.h          tensors of idx files (MNIST's)
     named.h        files of named tensors: reading them, whatever their format
     safetensors.h  the format of Hugging Face, with checksums
     shards.h       the same in several files, with an index
     npy.h          NumPy's files, npy and npz
     csv.h          tables of text
     set.h          data sets: views, orders, transforms
     prefetch.h     samples made ahead of time by threads
     batch.h        batches: of a number, of a budget; stacked, padded with lengths and masks, joined by you
     list.h         sets of files: a list with a line for each sample, a folder, a folder for each class
     blob.h         a data set in one file, or in memory
     json.h         JSON as a stream of events, and written
     settings.h     what a small JSON object says, by name
     meter.h        averages, counts, timers, a line of progress
     score.h        how good a classifier is: errors, top k, confusion, ROC, calibration
     edit.h         edit distance and alignment
     log.h          logs by step: CSV, JSON lines, TensorBoard's event files
     plot.h         curves in the terminal and as SVG
     file.h         the file operations and how to replace them, reading and writing whole files
     text.h         text that grows, strings that stay
     zip.h          archives, read and written
     pack.h         compressed bytes, read and written
     checksum.h     sums of bytes
     dlpack.h       memory shared with NumPy, PyTorch and others

   Macros, all optional (besides those of fl_mem.h)
     FL_USE_ZLIB   read .gz files through zlib (link -lz)

   Concepts
     Errors   Nothing here calls the error handler: functions return NULL or false, with a text that
              names file and offset. The tensor functions that they use are kept quiet too.
     Files    Every file operation goes through the table fl_data_io, so a test can fail any of them
              and a program can bring its own storage. A size read from a file is compared with the
              bytes that are left before anything is allocated: memory is bounded by 16 times the
              file's size plus 64 KiB; of gzip and npz by .max_bytes.
     Tensors  Readers and sets make tensors in the host's memory (backend "cpu"), in this thread's
              scope, whatever the default backend is; fl_data_to moves whole batches to another one.
     Sets     A data set has a size and gives sample i: up to eight tensors. Wrapping a set takes
              ownership of it, also when the wrapping fails: free the outermost, once. Two sets over
              the same tensors are cheap (views): a train and a test part are two
              fl_data_tensors, each with its fl_data_span. The size may change with the epoch, as
              that of batches by a budget over a shuffle.
     Order    What a set gives is a function of its seeds, the epoch and the index: never of threads
              or timing. Random numbers are a function of the seed, the epoch and who the sample is
              (fl_data_id): its index in the set that reads it. So it gets the same ones on one rank
              and on many, and wherever shuffles, shards, spans, batches and threads stand. */
#ifndef FL_DATA_H
#define FL_DATA_H /* for rooms, which need no second look at all that follows */
#endif
#include "fl_tensor.h"
#include "fl/data/file.h"
#include "fl/data/text.h"
#include "fl/data/checksum.h"
#include "fl/data/json.h"
#include "fl/data/settings.h"
#include "fl/data/pack.h"
#include "fl/data/idx.h"
#include "fl/data/named.h"
#include "fl/data/safetensors.h"
#include "fl/data/dlpack.h"
#include "fl/data/shards.h"
#include "fl/data/zip.h"
#include "fl/data/npy.h"
#include "fl/data/csv.h"
#include "fl/data/set.h"
#include "fl/data/prefetch.h"
#include "fl/data/batch.h"
#include "fl/data/list.h"
#include "fl/data/blob.h"
#include "fl/data/meter.h"
#include "fl/data/score.h"
#include "fl/data/edit.h"
#include "fl/data/log.h"
#include "fl/data/plot.h"

/* MIT licence: see LICENSE. */
