// What a generated kernel ends with: who computes which chunk of which tensor, and in which order sums are combined.
struct Sized { int64_t entries, index; };

// The largest first; of equals the first.
static int by_size(const void* a, const void* b) {
  const Sized &x = *static_cast<const Sized*>(a), &y = *static_cast<const Sized*>(b);
  if (x.entries != y.entries) return x.entries > y.entries ? -1 : 1;
  return x.index < y.index ? -1 : 1;
}

struct Plan { int64_t numel, cols, per_chunk, chunks, rows; };

static Plan plan(int pass, int64_t rows, int64_t cols) {
  Plan q;
  q.numel = rows * cols;
  q.cols = flat[pass] ? BLOCK : larger<int64_t>(cols, 1);
  q.rows = flat[pass] ? (q.numel + q.cols - 1) / q.cols : rows;  // a row without entries has states, too
  q.per_chunk = larger<int64_t>(1, CHUNK / q.cols);
  q.chunks = (q.rows + q.per_chunk - 1) / q.per_chunk;
  return q;
}

// The numbers of one tensor at a time: its scalars, the row sums that passes leave, and the sums of its chunks.
struct Numbers {
  int64_t rows = 1, chunks = 1;
  void fit(int64_t tensor_rows, int64_t cols) {
    rows = larger(rows, tensor_rows);
    for (int pass = 0; pass < PASSES; ++pass) chunks = larger(chunks, plan(pass, tensor_rows, cols).chunks);
  }
  int64_t size() const { return SCALARS + SAVED * rows + REDUCTIONS * chunks + 8; }
  double* saved(double* S) const { return S + SCALARS; }
  double* partial(double* S) const { return S + SCALARS + SAVED * rows; }
};

// A tensor is described by its pointers, its rows and its columns. One thread takes a whole tensor, the largest first and
// without waiting for others, unless the tensor is so large that the threads would end far apart; those they share.
// Returns 1, with nothing written, if there is no memory.
extern "C" int step(int64_t count, const int64_t* tensors, const double* literals, const double* H, int threads) {
  constexpr int64_t WIDTH = POINTERS + 2;
  int64_t longest = BLOCK, total = 0, shared = 0;
  Sized* order = static_cast<Sized*>(calloc(count + 1, sizeof(Sized)));
  if (!order) return 1;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t rows = tensors[i * WIDTH + POINTERS], cols = tensors[i * WIDTH + POINTERS + 1];
    longest = larger(longest, cols);
    total += rows * cols;
    order[i] = {rows * cols, i};
  }
  qsort(order, count, sizeof(Sized), by_size);
  const int64_t large = larger(LARGE, total / (4 * threads));
  while (threads > 1 && shared < count && order[shared].entries > large) ++shared;
  Numbers of_all, of_one;
  for (int64_t k = 0; k < count; ++k) {
    const int64_t* P = tensors + order[k].index * WIDTH;
    (k < shared ? of_all : of_one).fit(P[POINTERS], P[POINTERS + 1]);
  }
  const int64_t scratch_size = SCRATCH * longest + 64;
  real* scratches = static_cast<real*>(calloc(threads * scratch_size, sizeof(real)));
  double* numbers = static_cast<double*>(calloc(of_all.size() + threads * of_one.size(), sizeof(double)));
  const bool enough = scratches && numbers;
  if (enough) {
    #pragma omp parallel num_threads(threads)
    {
      real* scratch = scratches + omp_get_thread_num() * scratch_size;
      const auto go = [&](int pass, const Plan& q, int64_t c, const int64_t* P, double* S, const Numbers& n) {
        c = pass % 2 ? q.chunks - 1 - c : c;  // back from where the pass before has ended
        const int64_t first = c * q.per_chunk, end = smaller(q.rows, first + q.per_chunk);
        run(pass, Part{P, S, n.saved(S), q.numel, q.cols, q.rows, first, end, scratch, n.partial(S) + c * REDUCTIONS});
      };
      for (int64_t k = 0; k < shared; ++k) {
        const int64_t i = order[k].index;
        const int64_t* P = tensors + i * WIDTH;
        double* S = numbers;
        #pragma omp single
        advance(0, P, literals + i * LITERALS, H, S, nullptr, 0);
        for (int pass = 0; pass < PASSES; ++pass) {
          const Plan q = plan(pass, P[POINTERS], P[POINTERS + 1]);
          const int64_t chunks = wanted(pass, S) ? q.chunks : 0;
          #pragma omp for schedule(static)
          for (int64_t c = 0; c < chunks; ++c) go(pass, q, c, P, S, of_all);
          #pragma omp single
          {
            if (pass + 1 < PASSES) advance(pass + 1, P, literals + i * LITERALS, H, S, of_all.partial(S), chunks);
            else finish(P, S);
          }
        }
      }
      #pragma omp for schedule(dynamic)
      for (int64_t k = shared; k < count; ++k) {
        const int64_t i = order[k].index;
        const int64_t* P = tensors + i * WIDTH;
        double* S = numbers + of_all.size() + omp_get_thread_num() * of_one.size();
        advance(0, P, literals + i * LITERALS, H, S, nullptr, 0);
        for (int pass = 0; pass < PASSES; ++pass) {
          const Plan q = plan(pass, P[POINTERS], P[POINTERS + 1]);
          const int64_t chunks = wanted(pass, S) ? q.chunks : 0;
          for (int64_t c = 0; c < chunks; ++c) go(pass, q, c, P, S, of_one);
          if (pass + 1 < PASSES) advance(pass + 1, P, literals + i * LITERALS, H, S, of_one.partial(S), chunks);
        }
        finish(P, S);
      }
    }
  }
  free(order);
  free(scratches);
  free(numbers);
  return enough ? 0 : 1;
}
