/* kernels/cuda/group_norm.cu - group norm and its gradients

   A team of threads has a group of channels of an image, channels-first or channels-last. The gradient first
   computes sums per channel of an image, from which those of groups and weights are computed in order. */
#include "common.cuh"

struct flk_place_of {
    int64_t at, channel;
};
/* Offset of value i of group `row`, in memory order. */
static __device__ __forceinline__ flk_place_of flk_group_at(const flk_group_norm &a, int64_t row, int64_t i) {
    int64_t group = row;
    const int64_t image = flk_divide(&group, a.groups), each = a.channels / a.groups;
    const int64_t first = flk_divide(&i, a.last ? each : a.width), c = group * each + (a.last ? i : first);
    const int64_t in = a.last ? first : i;
    return {a.last ? (image * a.width + in) * a.channels + c : (image * a.channels + c) * a.width + in, c};
}

template <class T, int TEAM> __global__ void flk_group_norm_kernel(flk_group_norm a) {
    int lane;
    const int64_t r = flk_team_row<TEAM>(&lane), n = a.channels / a.groups * a.width;
    if (r >= a.images * a.groups) return;
    T mean = 0, var = 0;
    if (!a.known) {
        for (int64_t k = lane; k < n; k += TEAM) mean += flk_load<T>(a.x, flk_group_at(a, r, k).at);
        mean = flk_team<TEAM>(mean, flk_sum_of()) / (T)n;
        for (int64_t k = lane; k < n; k += TEAM) {
            const T d = flk_load<T>(a.x, flk_group_at(a, r, k).at) - mean;
            var += d * d;
        }
        var = flk_team<TEAM>(var, flk_sum_of()) / (T)n;
    } else {
        mean = ((const T *)a.mean)[r];
        var = ((const T *)a.var)[r];
    }
    const T rstd = 1 / flk_sqrt(var + (T)a.eps);
    for (int64_t k = lane; k < n; k += TEAM) {
        const flk_place_of p = flk_group_at(a, r, k);
        flk_store(a.y, p.at, (flk_load<T>(a.x, p.at) - mean) * (rstd * flk_load<T>(a.w, p.channel)) +
                                 flk_load<T>(a.b, p.channel));
    }
    if (lane || a.known) return;
    ((T *)a.mean)[r] = mean;
    ((T *)a.var)[r] = var;
}

/* part [2][images, channels]: sums of dy and of dy n, n = (x - mean) rstd. */
template <class T, int TEAM> __global__ void flk_group_parts_kernel(flk_group_norm a) {
    int lane;
    const int64_t r = flk_team_row<TEAM>(&lane), rows = a.images * a.channels;
    if (r >= rows) return;
    int64_t c = r;
    const int64_t image = flk_divide(&c, a.channels), group = image * a.groups + c / (a.channels / a.groups);
    const T mean = ((const T *)a.mean)[group], rstd = 1 / flk_sqrt(((const T *)a.var)[group] + (T)a.eps);
    T all = 0, along = 0;
    for (int64_t k = lane; k < a.width; k += TEAM) {
        const int64_t at = a.last ? (image * a.width + k) * a.channels + c : r * a.width + k;
        const T dy = flk_load<T>(a.dy, at);
        all += dy;
        along += dy * (flk_load<T>(a.x, at) - mean);
    }
    all = flk_team<TEAM>(all, flk_sum_of());
    along = flk_team<TEAM>(along, flk_sum_of()) * rstd;
    if (lane) return;
    ((T *)a.part)[r] = all;
    ((T *)a.part)[rows + r] = along;
}

/* dx = rstd (dy w - mean(dy w) - n mean(dy w n)). */
template <class T, int TEAM> __global__ void flk_group_grad_kernel(flk_group_norm a) {
    int lane;
    const int64_t r = flk_team_row<TEAM>(&lane), each = a.channels / a.groups, n = each * a.width;
    if (r >= a.images * a.groups) return;
    const T *part = (const T *)a.part + r * each;
    T all = 0, along = 0;
    for (int64_t k = lane; k < each; k += TEAM) {
        const T w = flk_load<T>(a.w, r % a.groups * each + k);
        all += w * part[k];
        along += w * part[a.images * a.channels + k];
    }
    all = flk_team<TEAM>(all, flk_sum_of()) / (T)n;
    along = flk_team<TEAM>(along, flk_sum_of()) / (T)n;
    const T mean = ((const T *)a.mean)[r], rstd = 1 / flk_sqrt(((const T *)a.var)[r] + (T)a.eps);
    for (int64_t k = lane; k < n; k += TEAM) {
        const flk_place_of p = flk_group_at(a, r, k);
        const T g = flk_load<T>(a.dy, p.at) * flk_load<T>(a.w, p.channel);
        flk_store(a.y, p.at, rstd * (g - all - (flk_load<T>(a.x, p.at) - mean) * rstd * along));
    }
}

template <class T> __global__ void flk_group_weights_kernel(flk_group_norm a) {
    const int64_t c = flk_thread();
    const T *part = (const T *)a.part;
    T dw = 0, db = 0;
    if (c >= a.channels) return;
    for (int64_t i = 0; i < a.images; i++) {
        db += part[i * a.channels + c];
        dw += part[(a.images + i) * a.channels + c];
    }
    if (a.dw) ((T *)a.dw)[c] = dw;
    if (a.db) ((T *)a.db)[c] = db;
}

const char *flk_group_norm_run(const flk_group_norm *a, int dtype) {
    const int64_t n = a->channels / a->groups * a->width;
    return FLK_BY_ROW(flk_group_norm_kernel, dtype, a->images * a->groups, n, *a);
}

const char *flk_group_norm_grad(const flk_group_norm *a, int dtype) {
    const int64_t n = a->channels / a->groups * a->width;
    const char *why = FLK_BY_ROW(flk_group_parts_kernel, dtype, a->images * a->channels, a->width, *a);
    if (!why && a->y.p) why = FLK_BY_ROW(flk_group_grad_kernel, dtype, a->images * a->groups, n, *a);
    if (why || !(a->dw || a->db)) return why;
    return FLK_FLOATS(flk_group_weights_kernel, dtype, flk_blocks(a->channels), *a);
}
/* MIT licence: see LICENSE. */
