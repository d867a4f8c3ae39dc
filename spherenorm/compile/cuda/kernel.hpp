// What every CUDA kernel has: which block takes which entries of which weight, and in which order sums are combined.
//
// A launch makes one pass over many weights. A block takes a chunk of one weight: some whole rows, or a piece of a row that
// is longer than a chunk. The threads of a block are divided into teams, one for each row at a time; a team of one thread
// takes short rows, the whole block long ones. Sums are added up in a fixed order: by thread, team, chunk and weight. The
// last block of a weight to end a pass combines the sums of its chunks, and computes the scalars of the next pass.
// Of a row that is cut into pieces, each loop of a pass is a launch, since its next loop needs the sums of all pieces.
constexpr int WARP = 32;
constexpr int MIN_BLOCKS = 2;  // of a processor: 128 registers for a thread, in which no recipe spills that computes in float
constexpr int WIDTH = 16 / sizeof(real);  // neighbouring entries that a thread takes at once
constexpr unsigned ALL_LANES = 0xffffffff;
#ifdef __CUDACC__
#define COUNT_BYTES(number)  // the shim counts them
#endif

// A weight of a launch, as the host describes it.
struct Weight {
  int64_t rows, cols;
  int64_t memory;       // index of its numbers in the memory of the batch
  int32_t first_block;  // of the launch
  int32_t chunks;
  int32_t rows_of_chunk;
  int32_t pieces;       // chunks of a row; 1 if chunks are whole rows
  int32_t team;         // threads that take a row
  int32_t program;
  int32_t literals;     // index of the first one
  int32_t unused;
  int64_t pointer[MAX_POINTERS];
};

struct Arguments {
  int64_t pass, loop, count;
  int64_t chunk;             // entries of a piece of a row
  double* memory;            // of the batch; 0 at first, apart from what a launch leaves for later ones
  double H[MAX_HYPER];       // hyper-parameters
  const double* H_address[MAX_HYPER];  // of those that are tensors on the device
  double literal[MAX_LITERALS];
  Weight weight[MAX_WEIGHTS];
};

struct Shared {
  double S[MAX_SCALARS];
  double H[MAX_HYPER];
  double totals[MAX_REDUCTIONS];
  double sum_of_warp[THREADS / WARP];
  int64_t P[MAX_POINTERS];
  int is_last;
};
__shared__ Shared shared;

// The sum over the threads of a team, of which each gets the same bits. All threads of the block come here.
FUNCTION double team_sum(double x, int team) {
  for (int distance = 1; distance < WARP && distance < team; distance *= 2) x += __shfl_xor_sync(ALL_LANES, x, distance);
  if (team <= WARP) return x;
  const int warp = threadIdx.x / WARP, first = threadIdx.x / team * (team / WARP);
  __syncthreads();  // until all have read the sums before
  if (threadIdx.x % WARP == 0) shared.sum_of_warp[warp] = x;
  __syncthreads();
  x = 0;
  for (int i = 0; i < team / WARP; ++i) x += shared.sum_of_warp[first + i];
  return x;
}

// Some neighbouring entries, at once if they lie where a vector may lie.
template <class T> struct alignas(WIDTH * sizeof(T)) Vector { T at[WIDTH]; };
template <class T> FUNCTION void read(real* to, const T* from, int n, bool aligned) {
  COUNT_BYTES(n * sizeof(T));
  if (aligned && n == WIDTH) {
    const Vector<T> x = *reinterpret_cast<const Vector<T>*>(from);
    #pragma unroll
    for (int k = 0; k < WIDTH; ++k) to[k] = load(x.at[k]);
  } else {
    #pragma unroll
    for (int k = 0; k < WIDTH; ++k) to[k] = k < n ? load(from[k]) : real(0);
  }
}
template <class T> FUNCTION void write(T* to, const real* from, int n, bool aligned) {
  COUNT_BYTES(n * sizeof(T));
  if (aligned && n == WIDTH) {
    Vector<T> x;
    #pragma unroll
    for (int k = 0; k < WIDTH; ++k) store(x.at[k], from[k]);
    *reinterpret_cast<Vector<T>*>(to) = x;
  } else {
    #pragma unroll
    for (int k = 0; k < WIDTH; ++k) if (k < n) store(to[k], from[k]);
  }
}

// What a pass over a chunk is given.
struct Part {
  const int64_t* P;
  const double* S;
  double* saved;        // row sums left by an earlier pass
  double* partial;      // where the sums of the chunk go
  double* piece_sums;   // row sums of pieces, by sum, row and piece
  int64_t rows, cols, first, end;  // of these, the rows from `first` to `end`
  int64_t start, stop;  // the entries of each row
  int64_t piece, pieces;
  int loop;             // the one to run; -1: all of them
  int team;
  bool aligned;

  DEVICE bool runs(int number) const { return loop < 0 || loop == number; }
  DEVICE int teams() const { return THREADS / team; }
  DEVICE int64_t row_of_team(int64_t row) const { return row + threadIdx.x / team; }
  DEVICE int64_t first_entry() const { return start + int64_t(threadIdx.x % team) * WIDTH; }
  DEVICE int64_t stride() const { return int64_t(team) * WIDTH; }
  // Whether the thread answers for the row, once it is known after loop `last`.
  DEVICE bool leads(int64_t row, int last) const {
    return row < end && threadIdx.x % team == 0 && piece == 0 && runs(last);
  }
  // Sum number `index` of a row, to which the thread adds `x` in loop `number`.
  DEVICE double row_sum(int index, double x, int64_t row, int number) const {
    if (loop < 0) return team_sum(x, team);
    double* const sums = piece_sums + (index * rows + row) * pieces;
    if (loop < number) return 0;  // no later loop runs
    if (loop == number) {
      x = team_sum(x, THREADS);
      if (threadIdx.x == 0) sums[piece] = x;
      return x;
    }
    x = 0;
    for (int64_t i = threadIdx.x; i < pieces; i += THREADS) x += sums[i];
    return team_sum(x, THREADS);
  }
  // Add up what the threads of the block have summed in loop `number`.
  DEVICE void total(int index, double x, int number) const {
    x = team_sum(x, THREADS);
    if (threadIdx.x == 0 && runs(number)) partial[index] = x;
  }
};

template <class Program> FUNCTION bool lies_aligned(const int64_t* P, int64_t rows, int64_t cols) {
  int64_t bits = rows > 1 ? cols % WIDTH : 0;
  for (int i = 0; i < Program::POINTERS; ++i) if (Program::FULL >> i & 1) bits |= P[i] % 16;
  return bits == 0;
}

template <class Program> FUNCTION void step_chunk(const Arguments& a, const Weight& w, int64_t chunk) {
  const int thread = threadIdx.x, pass = int(a.pass);
  // The numbers of a weight: a ticket, the sums of chunks, scalars, and the sums of rows and of pieces of rows.
  double* const ticket = a.memory + w.memory;
  double* const partial = ticket + 1;
  double* const scalars = partial + Program::REDUCTIONS * int64_t(w.chunks);
  double* const saved = scalars + Program::SCALARS;
  double* const piece_sums = saved + Program::SAVED * w.rows;
  const double* const L = a.literal + w.literals;
  for (int i = thread; i < Program::POINTERS; i += THREADS) shared.P[i] = w.pointer[i];
  for (int i = thread; i < Program::HYPER; i += THREADS) shared.H[i] = a.H_address[i] ? *a.H_address[i] : a.H[i];
  if (pass > 0) for (int i = thread; i < Program::SCALARS; i += THREADS) shared.S[i] = scalars[i];
  __syncthreads();
  if (pass == 0 && thread == 0) Program::advance(0, shared.P, L, shared.H, shared.S, nullptr, 0);
  __syncthreads();
  Part part;
  part.P = shared.P;
  part.S = shared.S;
  part.saved = saved;
  part.partial = partial + chunk * Program::REDUCTIONS;
  part.piece_sums = piece_sums;
  part.rows = w.rows;
  part.cols = w.cols;
  part.first = w.pieces > 1 ? chunk / w.pieces : chunk * w.rows_of_chunk;
  part.end = smaller(w.rows, part.first + w.rows_of_chunk);
  part.piece = w.pieces > 1 ? chunk % w.pieces : 0;
  part.pieces = w.pieces;
  part.start = part.piece * a.chunk;
  part.stop = w.pieces > 1 ? smaller(w.cols, part.start + a.chunk) : w.cols;
  part.loop = w.pieces > 1 ? int(a.loop) : -1;
  part.team = w.team;
  part.aligned = lies_aligned<Program>(shared.P, w.rows, w.cols);
  if (Program::wanted(pass, shared.S)) Program::run(pass, part);
  else if (thread < Program::REDUCTIONS) part.partial[thread] = 0;
  if (!part.runs(Program::last_loop(pass))) return;

  // Each block takes a ticket when its numbers are written, and the one with the last ticket reads them.
  __threadfence();
  __syncthreads();
  if (thread == 0) shared.is_last = atomicAdd(reinterpret_cast<int*>(ticket), 1) == w.chunks - 1;
  __syncthreads();
  if (!shared.is_last) return;
  __threadfence();
  const bool ends = pass == Program::PASSES - 1;
  for (int k = 0; k < Program::REDUCTIONS && !ends; ++k) {
    const volatile double* const sums = partial;
    double total = 0;
    for (int64_t c = thread; c < w.chunks; c += THREADS) total += sums[c * Program::REDUCTIONS + k];
    total = team_sum(total, THREADS);
    if (thread == 0) shared.totals[k] = total;
  }
  if (thread == 0) {
    *reinterpret_cast<int*>(ticket) = 0;
    if (ends) Program::finish(shared.P, shared.S);
    else Program::advance(pass + 1, shared.P, L, shared.H, shared.S, shared.totals, 1);
  }
  __syncthreads();
  if (!ends) for (int i = thread; i < Program::SCALARS; i += THREADS) scalars[i] = shared.S[i];
}

// The weight of a block: the last one whose first block is not beyond it.
FUNCTION int weight_of_block(const Arguments& a, int block) {
  int low = 0, high = int(a.count);
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (a.weight[middle].first_block <= block ? low : high) = middle;
  }
  return low;
}
