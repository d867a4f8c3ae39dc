// What a generated kernel starts with. REAL is what it computes in, STORED what weights and gradients are kept in.
// Few headers, since they take longer to compile than the step: no containers, no algorithms.
#include <cmath>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#else  // one thread, which takes the loops as they stand
static int omp_get_thread_num() { return 0; }
#endif

struct bfloat16 {
  uint16_t bits;
  bfloat16() = default;
  explicit bfloat16(float x) {  // round to nearest, ties to even; a nan stays one
    uint32_t b;
    memcpy(&b, &x, sizeof b);
    bits = x != x ? 0x7fc0 : uint16_t((b + 0x7fff + ((b >> 16) & 1)) >> 16);
  }
  explicit operator float() const {
    const uint32_t b = uint32_t(bits) << 16;
    float x;
    memcpy(&x, &b, sizeof x);
    return x;
  }
};
using real = REAL;
using stored = STORED;
template <int bytes> struct MaskOf { using type = int64_t; };
template <> struct MaskOf<4> { using type = int32_t; };
template <class T> using Mask = typename MaskOf<sizeof(T)>::type;
using mask = Mask<real>;
constexpr int64_t BLOCK = 2048;     // entries summed in `real` before the sum goes on in double
constexpr int64_t CHUNK = 16384;    // entries that one thread takes at a time
constexpr int64_t LARGE = 65536;    // entries below which a tensor is never shared between threads
template <class T> static inline T smaller(T a, T b) { return b < a ? b : a; }
template <class T> static inline T larger(T a, T b) { return a < b ? b : a; }
// A select that vectorizes when the decision is the same for the whole loop (gcc gives up on `?:` there); exact for nan too.
template <class T> static inline T choose(Mask<T> m, T a, T b) {
  Mask<T> x, y;
  memcpy(&x, &a, sizeof x);
  memcpy(&y, &b, sizeof y);
  x = (x & m) | (y & ~m);
  memcpy(&a, &x, sizeof a);
  return a;
}
// What a float32 scalar of the rule holds, of a value that is kept in double here.
static inline double rounded(double x) { return double(float(x)); }
// a b + c, of which torch does not round the product where the machine can do so at once.
template <class T> static inline T fused(T a, T b, T c) {
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
  return std::fma(a, b, c);
#else
  return a * b + c;
#endif
}
// As torch.lerp: exactly a at w = 0 and b at w = 1.
template <class T> static inline T lerp(T a, T b, T w) {
  const bool near = w < T(0.5);
  return fused<T>(near ? w : w - T(1), b - a, choose(-Mask<T>(near), a, b));
}
template <class T> static inline real load(const T& x) { return real(x); }
template <class T> static inline void store(T& place, real x) { place = T(x); }

// What a pass over a tensor is given: the rows from `first` to `end`, and where its reductions go.
struct Part {
  const int64_t* P;       // pointers of weight, gradient and states
  const double* S;        // scalars known so far
  double* saved;          // row sums left by an earlier pass
  int64_t numel, cols, rows, first, end;
  real* scratch;
  double* partial;
};
