/* fl_text.h - tokenizers, dictionaries, language models

   Reads the tokenizers and language models that people have as untrusted data, and writes them so that others
   read ours.

   >>example
    #define FL_IMPLEMENTATION
    #include "fl_text.h"
    #include <stdio.h>
    int main(void) {
        const char text[] = "to be, or not to be";
        fl_text_tokenizer *t = fl_text_char_tokenizer(text, sizeof text - 1);
        fl_text_encoding e = {0};
        fl_data_text back = {0};
        if (fl_text_encode(t, text, sizeof text - 1, &e) && fl_text_decode(t, e.id, e.n, false, &back))
            printf("%d characters: %s\n", (int)e.n, back.p);
        fl_text_encoding_free(&e);
        fl_heap_free(back.p);
        fl_text_tokenizer_free(t);
        return 0;
    }
   <<example

   Contents: the files of fl/text/.
     utf8.h             characters of text, and what becomes of bytes that are none
     unicode.h          classes, lower case, normal forms
     dictionary.h       words and their numbers
     pairs.h            a hash table of pairs of numbers
     scorer.h           what decoders ask of a language model
     data.h             token files, sets of samples over them, masking
     lines.h            sets of samples of a text file that is encoded when it is read
   tokenizers/
     tokenizer.h        text to numbers and back: the interface, truncation, padding, streams
     words.h            tokenizers of words and of characters
     bpe.h              byte-pair encoding
     gpt2.h             byte-level BPE in the files of GPT-2 and of tiktoken
     bpe_train.h        byte-pair encoding learnt from text
     wordpiece.h        BERT's tokenizer
     unigram.h          SentencePiece's unigram model
     unigram_train.h    and learnt from text
     sentencepiece.h    .model files, llama2.c's, and other vocabularies of pieces with scores
     gguf_tokenizer.h   tokenizers in GGUF files
     tokenizer_file.h   tokenizer.json, read
     steps.h            text on its way through
     normalize.h        normalizers
     split.h            pre-tokenizers
     pattern.h          strings, known splits, regular expressions
     decode.h           decoders
     vocabulary.h       vocabularies in tokenizer.json
     tree.h             small JSON texts as trees
     trie.h             which keys begin at a place of a text
     bytes.h            bytes written as characters; base64
   ngram/
     ngram.h            n-gram language models
     kenlm.h            KenLM's binary files
     train.h            n-gram models estimated from text
   models/
     models.h           language models: a transformer with options, gated convolutions, LSTM
     train.h            training and measuring them
     lora.h             fine-tuning by low-rank additions to weights
     decoder.h          incremental decoding with a KV cache
     generate.h         texts of a model's own: samplers, beams
     lm_scorer.h        a neural language model as a scorer
     load.h             models of Hugging Face's folders, GGUF, llama2.c; saving them
     gguf.h             GGUF files: reading and writing

   Concepts
     Text     Pointer and length; a NUL is a character like others.
     Errors   Nothing here calls the error handler: functions return NULL or false, with a text that names
              file and offset.
     Threads  Tokenizers and dictionaries are for any number of threads once they are made. */
#ifndef FL_TEXT_H
#define FL_TEXT_H /* for rooms, which need no second look at all that follows */
#endif
#if defined(FL_CALLS_H) && !defined(FL_TEXT_DECLARED)
#error "fl: with FL_TRACE_CALLS include fl_text.h before fl.h, or fl_all.h: functions are macros now"
#endif
#define FL_TEXT_DECLARED
#include "fl_optim.h"
#include "fl/text/utf8.h"
#include "fl/text/unicode.h"
#include "fl/text/dictionary.h"
#include "fl/text/tokenizers/tree.h"
#include "fl/text/tokenizers/trie.h"
#include "fl/text/pairs.h"
#include "fl/text/tokenizers/bytes.h"
#include "fl/text/tokenizers/steps.h"
#include "fl/text/tokenizers/normalize.h"
#include "fl/text/tokenizers/pattern.h"
#include "fl/text/tokenizers/split.h"
#include "fl/text/tokenizers/decode.h"
#include "fl/text/tokenizers/vocabulary.h"
#include "fl/text/tokenizers/tokenizer.h"
#include "fl/text/tokenizers/words.h"
#include "fl/text/tokenizers/bpe.h"
#include "fl/text/tokenizers/gpt2.h"
#include "fl/text/tokenizers/bpe_train.h"
#include "fl/text/tokenizers/wordpiece.h"
#include "fl/text/tokenizers/unigram.h"
#include "fl/text/tokenizers/sentencepiece.h"
#include "fl/text/tokenizers/unigram_train.h"
#include "fl/text/tokenizers/tokenizer_file.h"
#include "fl/text/scorer.h"
#include "fl/text/ngram/ngram.h"
#include "fl/text/ngram/kenlm.h"
#include "fl/text/ngram/train.h"
#include "fl/text/data.h"
#include "fl/text/lines.h"
FL__GLUE_BEGIN
#include "fl/text/models/models.h"
#include "fl/text/models/lora.h"
#include "fl/text/models/train.h"
FL__GLUE_END
#include "fl/text/models/decoder.h"
#include "fl/text/models/generate.h"
#include "fl/text/models/lm_scorer.h"
#include "fl/text/models/gguf.h"
#include "fl/text/tokenizers/gguf_tokenizer.h"
#include "fl/text/models/load.h"

/* MIT licence: see LICENSE. */
