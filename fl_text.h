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

   Contents: one room of fl/text/ each.
     utf8.h            characters of text, and what becomes of bytes that are none
     unicode.h         classes, lower case, normal forms
     dictionary.h      words and their numbers
     tokenizer.h       text to numbers and back: the interface, truncation, padding, streams
     words.h           tokenizers of words and of characters
     bpe.h             byte-pair encoding
     gpt2.h            byte-level BPE in the files of GPT-2 and of tiktoken
     bpe_train.h       byte-pair encoding learnt from text
     wordpiece.h       BERT's tokenizer
     unigram.h         SentencePiece's unigram model
     unigram_train.h   and learnt from text
     sentencepiece.h   .model files, llama2.c's, and other vocabularies of pieces with scores
     tokenizer_file.h  tokenizer.json, read
     ngram.h           n-gram language models, and what decoders ask of any language model
     kenlm.h           KenLM's binary files
     ngram_train.h     n-gram models estimated from text
     data.h            token files, sets of samples over them, masking
     lines.h           sets of samples of a text file that is encoded when it is read
     models.h          language models: a transformer with options, gated convolutions, LSTM
     train.h           training and measuring them
     lora.h            fine-tuning by low-rank additions to weights
     reader.h          scores of the next token, with keys and values kept
     generate.h        texts of a model's own: samplers, beams
     lm_scorer.h       a language model as decoders ask one
     load.h            models of Hugging Face's folders, GGUF, llama2.c; saving them
     gguf.h            GGUF files
   and below them
     steps.h           text on its way through
     normalize.h       normalizers
     split.h           pre-tokenizers
     pattern.h         strings, known splits, regular expressions
     decode.h          decoders
     vocabulary.h      vocabularies in tokenizer.json
     pairs.h           pairs of numbers
     tree.h            small JSON texts as trees
     trie.h            which keys begin at a place of a text
     bytes.h           bytes written as characters; base64

   Concepts
     Text     Pointer and length; a NUL is a character like others.
     Errors   Nothing here calls the error handler: functions return NULL or false, with a text that names
              file and offset.
     Threads  Tokenizers and dictionaries are for any number of threads once they are made. */
#ifndef FL_TEXT_H
#define FL_TEXT_H /* for rooms, which need no second look at all that follows */
#endif
#include "fl_optim.h"
#include "fl/text/utf8.h"
#include "fl/text/unicode.h"
#include "fl/text/dictionary.h"
#include "fl/text/tree.h"
#include "fl/text/trie.h"
#include "fl/text/pairs.h"
#include "fl/text/bytes.h"
#include "fl/text/steps.h"
#include "fl/text/normalize.h"
#include "fl/text/pattern.h"
#include "fl/text/split.h"
#include "fl/text/decode.h"
#include "fl/text/vocabulary.h"
#include "fl/text/tokenizer.h"
#include "fl/text/words.h"
#include "fl/text/bpe.h"
#include "fl/text/gpt2.h"
#include "fl/text/bpe_train.h"
#include "fl/text/wordpiece.h"
#include "fl/text/unigram.h"
#include "fl/text/sentencepiece.h"
#include "fl/text/unigram_train.h"
#include "fl/text/tokenizer_file.h"
#include "fl/text/ngram.h"
#include "fl/text/kenlm.h"
#include "fl/text/ngram_train.h"
#include "fl/text/data.h"
#include "fl/text/lines.h"
FL__GLUE_BEGIN
#include "fl/text/models.h"
#include "fl/text/lora.h"
#include "fl/text/train.h"
FL__GLUE_END
#include "fl/text/reader.h"
#include "fl/text/generate.h"
#include "fl/text/lm_scorer.h"
#include "fl/text/gguf.h"
#include "fl/text/load.h"

/* MIT licence: see LICENSE. */
