// What a generated kernel ends with: who computes which chunk of which tensor, and in which order sums are combined.
// Zeroed memory that grows; what it held is gone then.
template <class T> struct Buffer {
  T* held = nullptr;
  int64_t size = 0;
  explicit Buffer(int64_t wanted) { reserve(wanted); }
  Buffer(const Buffer&) = delete;
  ~Buffer() { free(held); }
  void reserve(int64_t wanted) {
    if (wanted <= size) return;
    free(held);
    held = static_cast<T*>(calloc(wanted, sizeof(T)));
    if (!held) abort();  // as where an exception leaves a parallel region
    size = wanted;
  }
  T& operator[](int64_t i) { return held[i]; }
};

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
  q.rows = (q.numel + q.cols - 1) / q.cols;
  q.per_chunk = larger<int64_t>(1, CHUNK / q.cols);
  q.chunks = (q.rows + q.per_chunk - 1) / q.per_chunk;
  return q;
}

static void run_chunk(int pass, const Plan& q, int64_t c, const int64_t* P, const double* S, double* saved, real* scratch,
                      double* partial) {
  const int64_t first = c * q.per_chunk, end = smaller(q.rows, first + q.per_chunk);
  run(pass, Part{P, S, saved, q.numel, q.cols, q.rows, first, end, scratch, partial + c * REDUCTIONS});
}

// One pass over all tensors, of which other processes hold further rows: the caller adds up the totals before the next pass.
// The threads share all chunks.
static void one_pass(int pass, int64_t count, const int64_t* tensors, const double* literals, const double* H, int threads,
                     double* S, double* saved, double* totals) {
  constexpr int64_t WIDTH = POINTERS + 2;
  Buffer<int64_t> first(count + 1), first_row(count + 1);
  int64_t longest = BLOCK;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t* P = tensors + i * WIDTH;
    advance(pass, P, literals + i * LITERALS, H, S + i * SCALARS, totals + i * REDUCTIONS, 1);
    longest = larger(longest, P[POINTERS + 1]);
    first[i + 1] = first[i] + (wanted(pass, S + i * SCALARS) ? plan(pass, P[POINTERS], P[POINTERS + 1]).chunks : 0);
    first_row[i + 1] = first_row[i] + P[POINTERS];
  }
  const int64_t chunks = first[count];
  Buffer<int64_t> owner(chunks);
  Buffer<double> partial(chunks * REDUCTIONS);
  for (int64_t i = 0; i < count; ++i)
    for (int64_t c = first[i]; c < first[i + 1]; ++c) owner[c] = i;
  #pragma omp parallel num_threads(threads)
  {
    Buffer<real> scratch(SCRATCH * longest + 1);
    #pragma omp for schedule(dynamic)
    for (int64_t c = 0; c < chunks; ++c) {
      const int64_t i = owner[c];
      const int64_t* P = tensors + i * WIDTH;
      run_chunk(pass, plan(pass, P[POINTERS], P[POINTERS + 1]), c - first[i], P, S + i * SCALARS, saved + first_row[i] * SAVED,
                scratch.held, partial.held + first[i] * REDUCTIONS);
    }
  }
  for (int64_t i = 0; i < count; ++i) {
    for (int k = 0; k < REDUCTIONS; ++k) {
      double& total = totals[i * REDUCTIONS + k] = 0;
      for (int64_t c = first[i]; c < first[i + 1]; ++c) total += partial[c * REDUCTIONS + k];
    }
    if (pass + 1 == PASSES) finish(tensors + i * WIDTH, S + i * SCALARS);
  }
}

// A tensor is described by its pointers, its rows and its columns. One thread takes a whole tensor, the largest first and
// without waiting for others, unless the tensor is so large that the threads would end far apart; those they share.
static void all_passes(int64_t count, const int64_t* tensors, const double* literals, const double* H, int threads) {
  constexpr int64_t WIDTH = POINTERS + 2;
  int64_t longest = BLOCK, most_rows = 1, total = 0;
  Buffer<Sized> order(count);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t rows = tensors[i * WIDTH + POINTERS], cols = tensors[i * WIDTH + POINTERS + 1];
    longest = larger(longest, cols);
    most_rows = larger(most_rows, rows);
    total += rows * cols;
    order[i] = {rows * cols, i};
  }
  if (count) qsort(order.held, count, sizeof(Sized), by_size);
  const int64_t large = larger(LARGE, total / (4 * threads));
  int64_t shared = 0;
  while (threads > 1 && shared < count && order[shared].entries > large) ++shared;
  Buffer<double> shared_S(SCALARS), shared_saved(shared ? SAVED * most_rows : 0), shared_partial(0);
  #pragma omp parallel num_threads(threads)
  {
    Buffer<real> scratch(SCRATCH * longest + 1);
    Buffer<double> own_S(SCALARS), own_saved(0), own_partial(0);
    for (int64_t k = 0; k < shared; ++k) {
      const int64_t i = order[k].index;
      const int64_t* P = tensors + i * WIDTH;
      const double* L = literals + i * LITERALS;
      double* S = shared_S.held;
      for (int pass = 0; pass < PASSES; ++pass) {
        const Plan q = plan(pass, P[POINTERS], P[POINTERS + 1]);
        if (pass == 0) {
          #pragma omp single
          {
            advance(0, P, L, H, S, nullptr, 0);
            int64_t most = 0;
            for (int p = 0; p < PASSES; ++p) most = larger(most, plan(p, P[POINTERS], P[POINTERS + 1]).chunks);
            shared_partial.reserve(most * REDUCTIONS);
          }
        }
        const bool go = wanted(pass, S);
        if (go) {
          #pragma omp for schedule(static)
          for (int64_t c = 0; c < q.chunks; ++c)
            run_chunk(pass, q, pass % 2 ? q.chunks - 1 - c : c, P, S, shared_saved.held, scratch.held, shared_partial.held);
        } else {
          #pragma omp barrier
        }
        #pragma omp single
        {
          if (pass + 1 < PASSES) advance(pass + 1, P, L, H, S, shared_partial.held, go ? q.chunks : 0);
          else finish(P, S);
        }
      }
    }
    #pragma omp for schedule(dynamic)
    for (int64_t k = shared; k < count; ++k) {
      const int64_t i = order[k].index;
      const int64_t* P = tensors + i * WIDTH;
      const double* L = literals + i * LITERALS;
      double* S = own_S.held;
      own_saved.reserve(SAVED * P[POINTERS]);
      advance(0, P, L, H, S, nullptr, 0);
      for (int pass = 0; pass < PASSES; ++pass) {
        const Plan q = plan(pass, P[POINTERS], P[POINTERS + 1]);
        own_partial.reserve(q.chunks * REDUCTIONS);
        const bool go = wanted(pass, S);
        for (int64_t c = 0; go && c < q.chunks; ++c)
          run_chunk(pass, q, pass % 2 ? q.chunks - 1 - c : c, P, S, own_saved.held, scratch.held, own_partial.held);
        if (pass + 1 < PASSES) advance(pass + 1, P, L, H, S, own_partial.held, go ? q.chunks : 0);
      }
      finish(P, S);
    }
  }
}

extern "C" void step(int64_t count, const int64_t* tensors, const double* literals, const double* H, int threads, int pass,
                     double* S, double* saved, double* totals) {
  if (pass < 0) all_passes(count, tensors, literals, H, threads);
  else one_pass(pass, count, tensors, literals, H, threads, S, saved, totals);
}
