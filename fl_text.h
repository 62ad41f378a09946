/* fl_text.h - tokenizers, dictionaries, language models

   Reads common formats of tokenizers and language models, as untrusted data, and writes them for other
   tools.

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
     utf8.h             UTF-8 decoding, invalid bytes
     unicode.h          character classes, lower case, normal forms
     dictionary.h       dictionaries: words and their ids
     pairs.h            hash table keyed by pairs of integers
     scorer.h           language-model interface of decoders
     data.h             token files, data sets over them, masking
     lines.h            data sets over text files, tokenized on the fly
   tokenizers/
     tokenizer.h        tokenizer interface: encode, decode, truncation, padding, streaming
     words.h            word and character tokenizers
     bpe.h              byte-pair encoding (BPE)
     gpt2.h             byte-level BPE: files of GPT-2 and tiktoken
     bpe_train.h        training BPE
     wordpiece.h        WordPiece, the tokenizer of BERT
     unigram.h          SentencePiece's unigram model
     unigram_train.h    training a unigram model
     sentencepiece.h    .model files, those of llama2.c, and other vocabularies with scores
     gguf_tokenizer.h   tokenizers in GGUF files
     tokenizer_file.h   reading tokenizer.json
     steps.h            pipeline steps of a tokenizer: normalizers, pre-tokenizers, decoders
     normalize.h        normalizers
     split.h            pre-tokenizers
     pattern.h          patterns: strings, built-in splits, regular expressions
     decode.h           decoders
     vocabulary.h       vocabularies in tokenizer.json
     tree.h             small JSON documents as trees
     trie.h             trie: keys that match at a position of a text
     bytes.h            byte-to-character mapping; base64
   ngram/
     ngram.h            n-gram language models
     kenlm.h            KenLM binary files
     train.h            estimating n-gram models from text
   models/
     models.h           language models: transformer, gated convolution, LSTM
     train.h            training and evaluation
     lora.h             LoRA: fine-tuning by low-rank updates
     decoder.h          incremental decoding with a KV cache
     generate.h         text generation: sampling, beam search
     lm_scorer.h        neural language model as a decoder's scorer
     load.h             loading models from Hugging Face folders, GGUF, llama2.c; saving
     gguf.h             GGUF files: reading and writing

   Concepts
     Text     Pointer and length; NUL has no special meaning.
     Errors   No function here calls the error handler: they return NULL or false, with an error text that
              names file and offset.
     Threads  Tokenizers and dictionaries may be used by any number of threads once they are created. */
#ifndef FL_TEXT_H
#define FL_TEXT_H /* its files test this: they need not read the following again */
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
