// The products of w, d = w' - w and g with each other at each index of a dimension, in one pass over memory.
// It follows numbers.hpp. Entries are read as they are stored; differences, products and sums are in double.
constexpr int64_t BLOCK = 256;  // entries side by side whose sums are kept apart, in the nearest cache

// w, w' and g in memory: `outer` times the indices of the dimension, each with `inner` entries.
// It is passed by value: sums might overlap a reference, so that loops would not be vectorized.
struct Weight {
  const stored *before, *after, *grad;
  int64_t outer, length, inner;
};

// Add the products of an entry to sums.
FUNCTION void add(const Weight x, int64_t entry, double& ww, double& wd, double& wg, double& dd, double& dg, double& gg) {
  const double w = load(x.before[entry]), d = load(x.after[entry]) - w, g = load(x.grad[entry]);
  ww += w * w;
  wd += w * d;
  wg += w * g;
  dd += d * d;
  dg += d * g;
  gg += g * g;
}

FUNCTION void write(double* products, double ww, double wd, double wg, double dd, double dg, double gg) {
  const double matrix[9] = {ww, wd, wg, wd, dd, dg, wg, dg, gg};
  memcpy(products, matrix, sizeof matrix);
}

// One index, whose entries lie in long runs.
static void multiply_runs(const Weight x, int64_t index, double* products) {
  double ww = 0, wd = 0, wg = 0, dd = 0, dg = 0, gg = 0;
  for (int64_t o = 0; o < x.outer; ++o) {
    const int64_t start = (o * x.length + index) * x.inner;
#pragma omp simd reduction(+ : ww, wd, wg, dd, dg, gg)
    for (int64_t j = start; j < start + x.inner; ++j) add(x, j, ww, wd, wg, dd, dg, gg);
  }
  write(products + 9 * index, ww, wd, wg, dd, dg, gg);
}

// Some neighbouring indices, of up to BLOCK entries that lie side by side, `outer` times.
static void multiply_block(const Weight x, int64_t first, int64_t indices, double* products) {
  double s[6][BLOCK] = {};
  for (int64_t o = 0; o < x.outer; ++o) {
    const int64_t start = (o * x.length + first) * x.inner;
#pragma omp simd
    for (int64_t j = 0; j < indices * x.inner; ++j)
      add(x, start + j, s[0][j], s[1][j], s[2][j], s[3][j], s[4][j], s[5][j]);
  }
  for (int64_t i = 0; i < indices; ++i) {
    double sums[6] = {};
    for (int64_t j = i * x.inner; j < (i + 1) * x.inner; ++j)
      for (int p = 0; p < 6; ++p) sums[p] += s[p][j];
    write(products + 9 * (first + i), sums[0], sums[1], sums[2], sums[3], sums[4], sums[5]);
  }
}

// The rows of `weights`, of shape (5, count): the addresses of w, w' and g, `outer` and `inner`.
// `products` are of shape (count, length, 3, 3).
extern "C" int inner_products(int64_t count, int64_t length, const int64_t* weights, double* products, int threads) {
#pragma omp parallel num_threads(threads)
  for (int64_t k = 0; k < count; ++k) {
    int64_t column[5];
    for (int i = 0; i < 5; ++i) column[i] = weights[i * count + k];
    const stored* vectors[3];
    for (int i = 0; i < 3; ++i) vectors[i] = reinterpret_cast<const stored*>(column[i]);
    const Weight x = {vectors[0], vectors[1], vectors[2], column[3], length, column[4]};
    double* of_weight = products + 9 * length * k;
    const bool has_long_runs = x.outer == 1 || x.inner >= BLOCK;
    const int64_t per_block = has_long_runs ? 1 : BLOCK / x.inner;
#pragma omp for schedule(static) nowait
    for (int64_t first = 0; first < length; first += per_block) {
      if (has_long_runs) multiply_runs(x, first, of_weight);
      else multiply_block(x, first, smaller(per_block, length - first), of_weight);
    }
  }
  return 0;
}
