// What a kernel for a CPU starts with.
// Few headers, since they take longer to compile than the step: no containers, no algorithms.
#include <stdlib.h>
#ifdef _OPENMP
#include <omp.h>
#else  // one thread, which takes the loops as they stand
static int omp_get_thread_num() { return 0; }
#endif

constexpr int64_t BLOCK = 2048;     // entries summed in `real` before the sum goes on in double
constexpr int64_t CHUNK = 16384;    // entries that one thread takes at a time
constexpr int64_t LARGE = 65536;    // entries below which a tensor is never shared between threads

// What a pass over a tensor is given: the rows from `first` to `end`, and where its reductions go.
struct Part {
  const int64_t* P;       // pointers of weight, gradient and states
  const double* S;        // scalars known so far
  double* saved;          // row sums left by an earlier pass
  int64_t numel, cols, rows, first, end;
  real* scratch;
  double* partial;
};
