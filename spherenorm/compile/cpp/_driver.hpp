// What a generated kernel ends with: who computes which chunk of which tensor, and in which order sums are combined.
struct Plan { int64_t numel, cols, per_chunk, chunks, rows; };

static Plan plan(int pass, int64_t rows, int64_t cols) {
  Plan q;
  q.numel = rows * cols;
  q.cols = flat[pass] ? BLOCK : std::max<int64_t>(cols, 1);
  q.rows = (q.numel + q.cols - 1) / q.cols;
  q.per_chunk = std::max<int64_t>(1, CHUNK / q.cols);
  q.chunks = (q.rows + q.per_chunk - 1) / q.per_chunk;
  return q;
}

static void run_chunk(int pass, const Plan& q, int64_t c, const int64_t* P, const double* S, double* saved, real* scratch,
                      double* partial) {
  const int64_t first = c * q.per_chunk, end = std::min(q.rows, first + q.per_chunk);
  run(pass, Part{P, S, saved, q.numel, q.cols, q.rows, first, end, scratch, partial + c * REDUCTIONS});
}

// A tensor is described by its pointers, its rows and its columns. One thread takes a whole tensor, the largest first and
// without waiting for others, unless the tensor is so large that the threads would end far apart; those they share.
extern "C" void step(int64_t count, const int64_t* tensors, const double* literals, const double* H, int threads) {
  constexpr int64_t WIDTH = POINTERS + 2;
  int64_t longest = BLOCK, most_rows = 1, total = 0;
  std::vector<std::pair<int64_t, int64_t>> order;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t rows = tensors[i * WIDTH + POINTERS], cols = tensors[i * WIDTH + POINTERS + 1];
    longest = std::max(longest, cols);
    most_rows = std::max(most_rows, rows);
    total += rows * cols;
    order.emplace_back(-rows * cols, i);
  }
  std::sort(order.begin(), order.end());
  const int64_t large = std::max(LARGE, total / (4 * threads));
  int64_t shared = 0;
  while (threads > 1 && shared < count && -order[shared].first > large) ++shared;
  std::vector<double> shared_S(SCALARS), shared_saved(shared ? SAVED * most_rows : 0), shared_partial;
  #pragma omp parallel num_threads(threads)
  {
    std::vector<real> scratch(SCRATCH * longest + 1);
    std::vector<double> own_S(SCALARS), own_saved, own_partial;
    for (int64_t k = 0; k < shared; ++k) {
      const int64_t i = order[k].second;
      const int64_t* P = tensors + i * WIDTH;
      const double* L = literals + i * LITERALS;
      double* S = shared_S.data();
      for (int pass = 0; pass < PASSES; ++pass) {
        const Plan q = plan(pass, P[POINTERS], P[POINTERS + 1]);
        if (pass == 0) {
          #pragma omp single
          {
            advance(0, P, L, H, S, nullptr, 0);
            int64_t most = 0;
            for (int p = 0; p < PASSES; ++p) most = std::max(most, plan(p, P[POINTERS], P[POINTERS + 1]).chunks);
            shared_partial.resize(std::max<size_t>(shared_partial.size(), most * REDUCTIONS));
          }
        }
        const bool go = wanted(pass, S);
        if (go) {
          #pragma omp for schedule(static)
          for (int64_t c = 0; c < q.chunks; ++c)
            run_chunk(pass, q, c, P, S, shared_saved.data(), scratch.data(), shared_partial.data());
        } else {
          #pragma omp barrier
        }
        #pragma omp single
        {
          if (pass + 1 < PASSES) advance(pass + 1, P, L, H, S, shared_partial.data(), go ? q.chunks : 0);
          else finish(P, S);
        }
      }
    }
    #pragma omp for schedule(dynamic)
    for (int64_t k = shared; k < count; ++k) {
      const int64_t i = order[k].second;
      const int64_t* P = tensors + i * WIDTH;
      const double* L = literals + i * LITERALS;
      double* S = own_S.data();
      own_saved.resize(std::max<size_t>(own_saved.size(), SAVED * P[POINTERS]));
      advance(0, P, L, H, S, nullptr, 0);
      for (int pass = 0; pass < PASSES; ++pass) {
        const Plan q = plan(pass, P[POINTERS], P[POINTERS + 1]);
        own_partial.resize(std::max<size_t>(own_partial.size(), q.chunks * REDUCTIONS));
        const bool go = wanted(pass, S);
        for (int64_t c = 0; go && c < q.chunks; ++c)
          run_chunk(pass, q, c, P, S, own_saved.data(), scratch.data(), own_partial.data());
        if (pass + 1 < PASSES) advance(pass + 1, P, L, H, S, own_partial.data(), go ? q.chunks : 0);
      }
      finish(P, S);
    }
  }
}
