/* One decode query per row over the slots that the row really holds: output, log-sum-exp and weights in one pass.

   Each (row, KV head) is worked on alone, in a fixed order, up to the row's own extent: a row's bits don't depend on
   its neighbours, and short rows cost what they hold. Vectors of eight floats; the compiler maps them to the machine. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>

typedef float v8 __attribute__((vector_size(32)));
typedef float loose8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef int32_t mask8 __attribute__((vector_size(32)));

#define INLINE static inline __attribute__((always_inline))
enum { TILE = 128 }; /* slots whose values stay in the first-level cache while several heads read them */

INLINE v8 load(const float *from) { return *(const loose8 *)from; }
INLINE void store(float *to, v8 x) { *(loose8 *)to = x; }
INLINE v8 pick(mask8 which, v8 yes, v8 no) { return (v8)(((mask8)yes & which) | ((mask8)no & ~which)); }

/* Eight sums over the lanes of eight vectors. */
INLINE v8 sums(const v8 a[8]) {
    v8 b[4], c[2];
    for (int i = 0; i < 4; i++)
        b[i] = __builtin_shufflevector(a[i], a[i + 4], 0, 1, 2, 3, 8, 9, 10, 11) +
               __builtin_shufflevector(a[i], a[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    for (int i = 0; i < 2; i++)
        c[i] = __builtin_shufflevector(b[2 * i], b[2 * i + 1], 0, 1, 8, 9, 4, 5, 12, 13) +
               __builtin_shufflevector(b[2 * i], b[2 * i + 1], 2, 3, 10, 11, 6, 7, 14, 15);
    return __builtin_shufflevector(c[0], c[1], 0, 2, 8, 10, 4, 6, 12, 14) +
           __builtin_shufflevector(c[0], c[1], 1, 3, 9, 11, 5, 7, 13, 15);
}

/* e^x for x <= 0, by the range reduction and the polynomial of Cephes; 0 where it would be below 1e-37. */
INLINE v8 exponential(v8 x) {
    v8 n = x * 1.44269504f + 12582912.0f; /* adding 1.5 * 2^23 rounds to an integer, in the low bits */
    mask8 power = (mask8)n << 23;
    n -= 12582912.0f;
    v8 r = x - n * 0.693359375f + n * 2.12194440e-4f;
    v8 y = 1.9875691500e-4f * r + 1.3981999507e-3f;
    y = y * r + 8.3334519073e-3f;
    y = y * r + 4.1665795894e-2f;
    y = y * r + 1.6666665459e-1f;
    y = y * r + 5.0000001201e-1f;
    y = y * r * r + r + 1.0f;
    return (v8)((mask8)(y * (v8)(power + 0x3f800000)) & (x > -85.0f));
}

/* out[heads][8 * vectors] += weights[heads][slots] values[slots][8 * vectors] */
INLINE void gather(float *out, int64_t out_stride, const float *weights, int64_t weight_stride, const float *values,
                   int64_t value_stride, int64_t slots, int heads, int vectors) {
    v8 sum[2][4];
    for (int h = 0; h < heads; h++)
        for (int i = 0; i < vectors; i++) sum[h][i] = load(out + h * out_stride + 8 * i);
    for (int64_t s = 0; s < slots; s++)
        for (int i = 0; i < vectors; i++) {
            v8 value = load(values + s * value_stride + 8 * i);
            for (int h = 0; h < heads; h++) sum[h][i] += value * weights[h * weight_stride + s];
        }
    for (int h = 0; h < heads; h++)
        for (int i = 0; i < vectors; i++) store(out + h * out_stride + 8 * i, sum[h][i]);
}

INLINE void gather_columns(float *out, int64_t out_stride, const float *weights, int64_t weight_stride,
                           const float *values, int64_t value_stride, int64_t slots, int heads, int64_t dim) {
    int64_t at = 0;
    for (; at + 32 <= dim; at += 32)
        gather(out + at, out_stride, weights, weight_stride, values + at, value_stride, slots, heads, 4);
    for (; at < dim; at += 8)
        gather(out + at, out_stride, weights, weight_stride, values + at, value_stride, slots, heads, 1);
}

typedef struct {
    int64_t rows, heads, group, dim, used, threads;
    int64_t query_row, query_head, query_group;
    int64_t key_row, key_head, key_slot, value_row, value_head, value_slot;
    int64_t bias_row, bias_head, bias_group;
    const int64_t *extents; /* slots that each row holds, [rows], each at most `used` */
    float scaling;
} shape;

/* A row's head: `group` queries over its slots. `logits` [group][stride] holds at least the extent, rounded up to 8. */
static void attend(const shape *n, int64_t slots, const float *query, const float *keys, const float *values,
                   const float *bias, float *out, float *lse, float *logits, int64_t stride, float *weights) {
    int64_t dim = n->dim;
    for (int64_t s = 0; s < slots; s += 8) {
        const float *key[8];
        for (int i = 0; i < 8; i++) key[i] = keys + (s + i < slots ? s + i : slots - 1) * n->key_slot;
        for (int64_t g = 0; g < n->group; g++) {
            const float *q = query + g * n->query_group;
            v8 sum[8] = {0};
            for (int64_t j = 0; j < dim; j += 8) {
                v8 part = load(q + j);
                for (int i = 0; i < 8; i++) sum[i] += part * load(key[i] + j);
            }
            store(logits + g * stride + s, sums(sum) * n->scaling);
        }
    }
    for (int64_t g = 0; g < n->group; g++) {
        float *row = logits + g * stride;
        int64_t padded = (slots + 7) & ~(int64_t)7;
        if (bias)
            for (int64_t s = 0; s < slots; s++) row[s] += bias[g * n->bias_group + s];
        for (int64_t s = slots; s < padded; s++) row[s] = -INFINITY;
        v8 most = load(row);
        for (int64_t s = 8; s < padded; s += 8) most = pick(load(row + s) > most, load(row + s), most);
        float top = most[0];
        for (int i = 1; i < 8; i++) top = most[i] > top ? most[i] : top;
        if (top == -INFINITY) top = 0;
        v8 total = {0};
        for (int64_t s = 0; s < padded; s += 8) {
            v8 w = exponential(load(row + s) - top);
            store(row + s, w);
            total += w;
        }
        float sum = 0;
        for (int i = 0; i < 8; i++) sum += total[i];
        float share = sum > 0 ? 1 / sum : 0;
        for (int64_t s = 0; s < padded; s += 8) store(row + s, load(row + s) * share);
        if (lse) lse[g] = sum > 0 ? logf(sum) + top : -INFINITY;
        if (weights) {
            for (int64_t s = 0; s < slots; s++) weights[g * n->used + s] = row[s];
            for (int64_t s = slots; s < n->used; s++) weights[g * n->used + s] = 0;
        }
        for (int64_t j = 0; j < dim; j++) out[g * dim + j] = 0;
    }
    for (int64_t first = 0; first < slots; first += TILE) {
        int64_t some = slots - first < TILE ? slots - first : TILE;
        const float *tile = values + first * n->value_slot;
        int64_t g = 0;
        for (; g + 2 <= n->group; g += 2)
            gather_columns(out + g * dim, dim, logits + g * stride + first, stride, tile, n->value_slot, some, 2, dim);
        for (; g < n->group; g++)
            gather_columns(out + g * dim, dim, logits + g * stride + first, stride, tile, n->value_slot, some, 1, dim);
    }
}

/* out [rows][heads][group][dim], lse [rows][heads][group] and weights [rows][heads][group][used] are contiguous.
   bias, lse and weights may be null. Returns 0, or 1 where no memory was left. */
int tiercache_decode_attention(const shape *n, const float *query, const float *keys, const float *values,
                               const float *bias, float *out, float *lse, float *weights) {
    int64_t stride = (n->used + 8) & ~(int64_t)7;
    int failed = 0;
#pragma omp parallel num_threads(n->threads) if (n->threads > 1 && n->rows * n->heads > 1)
    {
        float *logits = malloc(sizeof(float) * n->group * stride);
        if (!logits) {
#pragma omp atomic write
            failed = 1;
        }
#pragma omp for schedule(dynamic, 1)
        for (int64_t item = 0; item < n->rows * n->heads; item++) {
            if (!logits) continue;
            int64_t row = item / n->heads, head = item % n->heads, one = item * n->group;
            attend(n, n->extents[row], query + row * n->query_row + head * n->query_head,
                   keys + row * n->key_row + head * n->key_head, values + row * n->value_row + head * n->value_head,
                   bias ? bias + row * n->bias_row + head * n->bias_head : 0, out + one * n->dim, lse ? lse + one : 0,
                   logits, stride, weights ? weights + one * n->used : 0);
        }
        free(logits);
    }
    return failed;
}
