// Lets g++ compile a CUDA kernel, and runs its blocks one after another on a CPU.
//
// Each thread of a block is a fibre that runs from one barrier to the next. Between barriers the fibres take turns in an
// order that differs from barrier to barrier, and shared memory starts as nan, so that a missing barrier shows in the
// numbers. A barrier that only some threads of a block (of a warp, in a shuffle) reach is an error.
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

static bool run_block(int threads, unsigned& seed) {
  for (int t = 0; t < threads; ++t) fibres[t].state = READY;
  for (;;) {
    seed = seed * 1664525u + 1013904223u;
    const unsigned start = seed >> 20, stride = (seed >> 8) | 1;  // odd: each thread of a power of two has its turn
    for (unsigned i = 0; i < unsigned(threads); ++i) {
      const int t = int((start + i * stride) % unsigned(threads));
      if (fibres[t].state == READY) resume(t);
    }
    bool done = true, released = release(0, threads, AT_BARRIER);
    for (int t = 0; t < threads; ++t) done = done && fibres[t].state == DONE;
    if (done) return true;
    if (!released)
      for (int t = 0; t < threads; t += WARP_SIZE) released = release(t, t + WARP_SIZE, AT_SHUFFLE) || released;
    if (!released) return false;
  }
}

// Runs a kernel; `bytes` grows by what it reads and writes of weights, gradients and states.
static int launch(void (*kernel)(const void*), const void* kernel_arguments, int blocks, int threads, void* shared_memory,
                  size_t shared_bytes, unsigned seed, int64_t* bytes) {
  pthread_mutex_lock(&mutex);
  if (!stacks) stacks = static_cast<char*>(malloc(STACK_BYTES * MAX_THREADS));
  int result = stacks ? RIGHT : NO_MEMORY;
  body = kernel;
  arguments = kernel_arguments;
  n_bytes = 0;
  for (int i = 0; i < blocks && result == RIGHT; ++i) {
    blockIdx.x = unsigned(seed % 2 ? blocks - 1 - i : i);
    memset(shared_memory, 0xff, shared_bytes);
    unsigned order = seed + unsigned(i);
    if (!run_block(threads, order)) result = DIVERGENT;
  }
  if (result == DIVERGENT)  // the fibres have stopped somewhere, and begin anew
    for (int t = 0; t < threads; ++t) fibres[t].started = false;
  *bytes += n_bytes;
  pthread_mutex_unlock(&mutex);
  return result;
}
}  // namespace shim
