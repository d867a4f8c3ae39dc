// Lets g++ compile a CUDA kernel, and runs its blocks one after another on a CPU.
//
// Each thread of a block is a fibre. Between two barriers one warp after another runs, in an order that differs from
// barrier to barrier, and so do the threads of a warp between its shuffles; shared memory starts as nan. So a missing
// barrier shows in the numbers. A barrier that only some threads of a block (or of a warp, a shuffle) reach is an error.
#include <pthread.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

namespace shim {
constexpr int MAX_THREADS = 1024, WARP_SIZE = 32;
constexpr size_t STACK_BYTES = 1 << 16;
enum State { READY, AT_SHUFFLE, AT_BARRIER, DONE };
enum Result { RIGHT = 0, NO_MEMORY = 1, DIVERGENT = 2 };
struct Index { unsigned x; };
struct Fibre {
  jmp_buf registers;
  bool started;
  State state;
  int line;  // of the source, where it waits
};
static Fibre fibres[MAX_THREADS];
static double exchanged[MAX_THREADS];
static char* stacks;
static jmp_buf scheduler;
static ucontext_t first_context;
static int running;
static void (*body)(const void*);
static const void* arguments;
static int64_t n_bytes;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static void wait(State state, int line) {
  Fibre& fibre = fibres[running];
  fibre.state = state;
  fibre.line = line;
  if (!_setjmp(fibre.registers)) _longjmp(scheduler, 1);
}

static double exchange(double value, int distance, int line) {
  const int self = running;
  exchanged[self] = value;
  wait(AT_SHUFFLE, line);
  const double other = exchanged[self ^ distance];
  wait(AT_SHUFFLE, -line);  // until all have read
  return other;
}
}  // namespace shim

#define __global__
#define __shared__ static
#define __grid_constant__ &  // 256 copies of the arguments would not fit on the fibres' stacks
#define __launch_bounds__(threads, blocks)
#define COUNT_BYTES(number) shim::n_bytes += int64_t(number)
#define __syncthreads() shim::wait(shim::AT_BARRIER, __LINE__)
#define __shfl_xor_sync(lanes, value, distance) shim::exchange(value, distance, __LINE__)
#define __threadfence()
static shim::Index threadIdx, blockIdx;
static int atomicAdd(int* place, int x) { return (*place += x) - x; }

namespace shim {
static void run_fibre() {
  for (;;) {
    body(arguments);
    wait(DONE, 0);
  }
}

// Runs a fibre to its next barrier, or to its end.
static void resume(int thread) {
  running = thread;
  threadIdx.x = unsigned(thread);
  if (_setjmp(scheduler)) return;
  if (fibres[thread].started) _longjmp(fibres[thread].registers, 1);
  fibres[thread].started = true;
  getcontext(&first_context);
  first_context.uc_stack.ss_sp = stacks + STACK_BYTES * thread;
  first_context.uc_stack.ss_size = STACK_BYTES;
  first_context.uc_link = nullptr;
  makecontext(&first_context, run_fibre, 0);
  setcontext(&first_context);
}

// Lets the threads from `first` to `end` go on, if all of them wait in one line of the source.
static bool release(int first, int end, State state) {
  for (int t = first; t < end; ++t)
    if (fibres[t].state != state || fibres[t].line != fibres[first].line) return false;
  for (int t = first; t < end; ++t) fibres[t].state = READY;
  return true;
}

// A number below `count`, a power of two, for each `i` below it: another permutation for each seed.
static int permuted(int i, int count, unsigned seed) {
  const unsigned start = seed >> 20, stride = (seed >> 8) | 1;
  return int((start + unsigned(i) * stride) % unsigned(count));
}

// Lets a warp run until its threads wait at a barrier of the block, or are done.
static bool run_warp(int first, unsigned& seed) {
  do {
    seed = seed * 1664525u + 1013904223u;
    for (int i = 0; i < WARP_SIZE; ++i) {
      const int t = first + permuted(i, WARP_SIZE, seed);
      if (fibres[t].state == READY) resume(t);
    }
  } while (release(first, first + WARP_SIZE, AT_SHUFFLE));
  for (int t = first; t < first + WARP_SIZE; ++t)
    if (fibres[t].state == AT_SHUFFLE) return false;
  return true;
}

// Lets the warps run one after another, each as far ahead of the others as barriers allow.
static bool run_block(int threads, unsigned seed) {
  for (int t = 0; t < threads; ++t) fibres[t].state = READY;
  do {
    seed = seed * 1664525u + 1013904223u;
    const int warps = threads / WARP_SIZE;
    const unsigned order = seed;
    for (int i = 0; i < warps; ++i)
      if (!run_warp(WARP_SIZE * permuted(i, warps, order), seed)) return false;
  } while (release(0, threads, AT_BARRIER));
  for (int t = 0; t < threads; ++t)
    if (fibres[t].state != DONE) return false;
  return true;
}

// Runs a kernel; `bytes` grows by what it reads and writes of weights, gradients and states.
static int launch(void (*kernel)(const void*), const void* kernel_arguments, int blocks, int threads, void* shared_memory,
                  size_t shared_bytes, unsigned seed, int64_t* bytes) {
  pthread_mutex_lock(&mutex);
  stacks = static_cast<char*>(malloc(STACK_BYTES * size_t(threads)));
  for (int t = 0; t < threads; ++t) fibres[t].started = false;
  int result = stacks ? RIGHT : NO_MEMORY;
  body = kernel;
  arguments = kernel_arguments;
  n_bytes = 0;
  for (int i = 0; i < blocks && result == RIGHT; ++i) {
    blockIdx.x = unsigned(seed % 2 ? blocks - 1 - i : i);
    memset(shared_memory, 0xff, shared_bytes);
    if (!run_block(threads, seed + unsigned(i))) result = DIVERGENT;
  }
  free(stacks);
  *bytes += n_bytes;
  pthread_mutex_unlock(&mutex);
  return result;
}
}  // namespace shim
