/* fl_data.h - tensors in files, data sets, loaders, meters, logs, plots

   Reads safetensors, npy, npz, idx, CSV and JSON as untrusted data, writes files atomically, and composes
   data sets: slices, shuffles, batches, transforms, prefetching threads.

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
        fl_data_free(set); // frees the wrapped sets too
        fl_scope_end(&s);
        return 0;
    }
   <<example

   Contents: the files of fl/data/.
     idx.h          tensors in idx files (MNIST)
     named.h        files of named tensors in any format: reading
     safetensors.h  the safetensors format of Hugging Face, with checksums
     shards.h       sharded safetensors with an index
     npy.h          NumPy files, npy and npz
     csv.h          CSV tables
     set.h          data sets: views, orders, transforms
     prefetch.h     prefetching samples by threads
     batch.h        batches: fixed size or by budget; stacked, padded with lengths and masks, custom
     list.h         sets of files: lists with a line per sample, folders, a folder per class
     blob.h         a data set in one file, or in memory
     json.h         JSON: streaming parser, writer
     settings.h     fields of a small JSON object by name
     meter.h        averages, counters, timers, progress line
     score.h        classification metrics: errors, top k, confusion matrix, ROC, calibration
     edit.h         edit distance and alignment
     log.h          training logs: CSV, JSON lines, TensorBoard event files
     plot.h         line plots in the terminal and as SVG
     file.h         file operations, replaceable; reading and writing whole files
     text.h         string builder, string arena
     zip.h          zip archives: reading and writing
     pack.h         compressed data: reading and writing
     checksum.h     checksums
     dlpack.h       sharing memory with NumPy, PyTorch and others (DLPack)

   Macros, all optional (besides those of fl_mem.h)
     FL_USE_ZLIB   read .gz files through zlib (link -lz)

   Concepts
     Errors   No function here calls the error handler: they return NULL or false, with an error text that
              names file and offset. This includes the tensor functions they use.
     Files    All file operations go through the table fl_data_io, so a test can make any of them fail and a
              program can supply its own storage. Sizes read from a file are compared with the remaining
              bytes before memory is allocated: it is bounded by 16 times the file size plus 64 KiB, for
              gzip and npz by .max_bytes.
     Tensors  Readers and sets create tensors in host memory (backend "cpu"), in this thread's scope,
              independent of the default backend; fl_data_to moves batches to another backend.
     Sets     A data set has a size and returns sample i: up to eight tensors. Wrapping a set takes
              ownership of it, even if it fails: free only the outermost set. Several sets over the same
              tensors are cheap (views): a train and a test split are two fl_data_tensors, each with its
              fl_data_slice. The size may change per epoch, as for batches by budget over a shuffle.
     Order    Samples are a function of seeds, epoch and index only, never of threads or timing. Random
              numbers are a function of seed, epoch and the sample's id (fl_data_id), its index in the set
              that reads it. So a sample gets the same random numbers on one rank and on many, and in any
              order of shuffles, shards, spans, batches and threads. */
#ifndef FL_DATA_H
#define FL_DATA_H /* its files test this: they need not read the following again */
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
#include "fl/data/protobuf.h"

/* MIT licence: see LICENSE. */
