// The numbers of a generated kernel, for g++, nvcc and NVRTC alike.
// REAL is what it computes in, STORED what weights and gradients are kept in.
#ifdef __CUDACC__
#define DEVICE __device__
#else
#define DEVICE
#endif
#define FUNCTION static DEVICE inline
#ifdef __CUDACC_RTC__  // which has no headers
using uint16_t = unsigned short;
using int32_t = int;
using uint32_t = unsigned;
using int64_t = long long;
using uint64_t = unsigned long long;
#define M_PI 3.14159265358979323846
namespace std {
using ::abs, ::cos, ::exp, ::fma, ::log, ::log1p, ::pow, ::sin, ::sqrt, ::tanh;
}
#else
#include <cmath>
#include <stdint.h>
#include <string.h>
#endif

template <class To, class From> FUNCTION To bits_of(From x) {
  static_assert(sizeof(To) == sizeof(From), "bits are kept");
  To bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}
struct bfloat16 {
  uint16_t bits;
  bfloat16() = default;
  DEVICE explicit bfloat16(float x) {  // round to nearest, ties to even; a nan stays one
    const uint32_t b = bits_of<uint32_t>(x);
    bits = x != x ? 0x7fc0 : uint16_t((b + 0x7fff + ((b >> 16) & 1)) >> 16);
  }
  DEVICE explicit operator float() const { return bits_of<float>(uint32_t(bits) << 16); }
};
struct float16 {
  uint16_t bits;
  float16() = default;
  DEVICE explicit float16(float x) {  // round to nearest, ties to even; from 65520 on to infinity
    const uint32_t b = bits_of<uint32_t>(x), size = b & 0x7fffffff;
    uint32_t half;
    if (size > 0x7f800000) half = 0x7e00;
    else if (size >= 0x477ff000) half = 0x7c00;
    else if (size < 0x38800000)  // below 2^-14 the spacing is 2^-24, that of float32 at 1/2
      half = bits_of<uint32_t>(bits_of<float>(size) + 0.5f) - 0x3f000000;
    else half = (size - 0x38000000 + 0xfff + ((size >> 13) & 1)) >> 13;
    bits = uint16_t(half | ((b >> 16) & 0x8000));
  }
  DEVICE explicit operator float() const {
    const uint32_t size = bits & 0x7fff, sign = uint32_t(bits & 0x8000) << 16;
    if (size >= 0x7c00) return bits_of<float>(sign | 0x7f800000 | (size & 0x3ff) << 13);
    // The exponents of the two formats differ by 112.
    const float x = bits_of<float>(size << 13) * bits_of<float>(uint32_t(127 + 112) << 23);
    return bits_of<float>(bits_of<uint32_t>(x) | sign);
  }
};
using real = REAL;
using stored = STORED;
template <int bytes> struct MaskOf { using type = int64_t; };
template <> struct MaskOf<4> { using type = int32_t; };
template <class T> using Mask = typename MaskOf<sizeof(T)>::type;
using mask = Mask<real>;
template <class T> FUNCTION T smaller(T a, T b) { return b < a ? b : a; }
template <class T> FUNCTION T larger(T a, T b) { return a < b ? b : a; }
// A select that vectorizes when the decision is the same for the whole loop (gcc gives up on `?:` there); exact for nan too.
template <class T> FUNCTION T choose(Mask<T> m, T a, T b) {
  const Mask<T> x = bits_of<Mask<T>>(a), y = bits_of<Mask<T>>(b);
  return bits_of<T>(Mask<T>((x & m) | (y & ~m)));
}
// What a float32 scalar of the rule holds, of a value that is kept in double here.
FUNCTION double rounded(double x) { return double(float(x)); }
// a b + c, of which torch does not round the product where the machine can do so at once.
template <class T> FUNCTION T fused(T a, T b, T c) {
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA) || defined(__CUDA_ARCH__)
  return std::fma(a, b, c);
#else
  return a * b + c;
#endif
}
// As torch.lerp: exactly a at w = 0 and b at w = 1.
template <class T> FUNCTION T lerp(T a, T b, T w) {
  const bool near = w < T(0.5);
  return fused<T>(near ? w : w - T(1), b - a, choose(-Mask<T>(near), a, b));
}
template <class T> FUNCTION real load(const T& x) { return real(x); }
template <class T> FUNCTION void store(T& place, real x) { place = T(x); }
