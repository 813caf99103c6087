/* Vectors of eight floats; the compiler maps them to the machine. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef float v8 __attribute__((vector_size(32)));
typedef float loose8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef int32_t mask8 __attribute__((vector_size(32)));
typedef uint32_t word8 __attribute__((vector_size(32)));

#define INLINE static inline __attribute__((always_inline))

INLINE v8 load(const float *from) { return *(const loose8 *)from; }
INLINE void store(float *to, v8 x) { *(loose8 *)to = x; }
INLINE v8 pick(mask8 which, v8 yes, v8 no) { return (v8)(((mask8)yes & which) | ((mask8)no & ~which)); }

/* e^x for x <= 0, by the range reduction and the polynomial of Cephes; 0 where it would be below 1e-37, and what is no number stays none. */
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
    return (v8)((mask8)(y * (v8)(power + 0x3f800000)) & ~(x <= -85.0f));
}
