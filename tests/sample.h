/* sample.h - which cases of an exhaustive suite run: those that SEED of the environment draws, all without it

   `make test` sets SEED, `make test-full` does not. A case is drawn by its name, so that the same seed
   runs the same cases whatever else the suite holds. */
#ifndef SAMPLE_H
#define SAMPLE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

/* True for about one of `one_in` names. */
__attribute__((unused)) static bool in_sample(const char *name, unsigned one_in) {
    const char *seed = getenv("SEED");
    if (!seed || !*seed) return true;
    uint64_t hash = strtoull(seed, NULL, 10) * 0x9e3779b97f4a7c15u + 1469598103934665603u;
    for (; *name; name++) hash = (hash ^ (uint8_t)*name) * 1099511628211u;
    hash = (hash ^ hash >> 32) * 0x9e3779b97f4a7c15u;
    return (hash >> 32) % one_in == 0;
}

#endif /* MIT licence: see LICENSE. */
