/* llama_loop.h - a plain C loop over llama2.c's file, for bench/generate.c */
#ifndef LLAMA_LOOP_H
#define LLAMA_LOOP_H

typedef struct llama_loop llama_loop;
llama_loop *llama_loop_open(const char *path); /* NULL: there is no such file */
void llama_loop_close(llama_loop *m);
int llama_loop_length(const llama_loop *m);
int llama_loop_vocabulary(const llama_loop *m);
/* The scores behind that token, which is number `at` of the text. */
const float *llama_loop_step(llama_loop *m, int token, int at);

#endif
/* MIT licence: see LICENSE. */
