// The products of w, d = w' - w and g with each other at each index of a dimension, in one pass over memory.
// It follows numbers.hpp. Entries are read as they are stored; differences, products and sums are in double.
//
// A row of `weights` has the addresses of w, w' and g, which are contiguous, and how many entries there are before
// the dimension and behind it. `products` is of shape (count, length, 3, 3).
extern "C" int inner_products(int64_t count, int64_t length, const int64_t* weights, double* products, int threads) {
#pragma omp parallel num_threads(threads)
  for (int64_t k = 0; k < count; ++k) {
    const int64_t* row = weights + 5 * k;
    const stored* before = reinterpret_cast<const stored*>(row[0]);
    const stored* after = reinterpret_cast<const stored*>(row[1]);
    const stored* grad = reinterpret_cast<const stored*>(row[2]);
    const int64_t outer = row[3], inner = row[4];
#pragma omp for schedule(static) nowait
    for (int64_t i = 0; i < length; ++i) {
      double ww = 0, wd = 0, wg = 0, dd = 0, dg = 0, gg = 0;
      for (int64_t o = 0; o < outer; ++o) {
        const int64_t start = (o * length + i) * inner;
#pragma omp simd reduction(+ : ww, wd, wg, dd, dg, gg)
        for (int64_t j = start; j < start + inner; ++j) {
          const double w = load(before[j]), d = load(after[j]) - w, g = load(grad[j]);
          ww += w * w;
          wd += w * d;
          wg += w * g;
          dd += d * d;
          dg += d * g;
          gg += g * g;
        }
      }
      const double of_index[9] = {ww, wd, wg, wd, dd, dg, wg, dg, gg};
      memcpy(products + 9 * (k * length + i), of_index, sizeof of_index);
    }
  }
  return 0;
}
