/* Products with weights that lie as the processor wants them. */

#include <stdint.h>

typedef struct {
    int64_t inputs, outputs;
    const float *weights; /* packed */
    const float *bias;    /* may be null */
} product;

/* out[rows][outputs] = x[rows][inputs] weights + bias + add[rows][outputs]; rows of x are `step` apart, add may be null. */
void tiercache_multiply(const product *p, int64_t rows, const float *x, int64_t step, const float *add, float *out,
                        int64_t threads);
