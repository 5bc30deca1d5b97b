// Runs the text of the CUDA kernels on the CPU: every thread of a block is a fiber, __syncthreads waits for all of
// them, and the order in which threads run is shuffled, so that a missing barrier shows. Memory behind the block's
// shared memory is looked at for writes.
#pragma once

#include <ucontext.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <random>
#include <tuple>
#include <utility>
#include <vector>

#define PDT_ON_CPU
#define __global__
#define __launch_bounds__(...)
#define DYNAMIC_SHARED(name) uint4* name = cuda_on_cpu::shared.data()

struct alignas(16) uint4 {
    uint32_t x, y, z, w;
};
struct Index {
    unsigned x = 0, y = 0;
};
inline Index threadIdx, blockIdx, blockDim;

static inline uint4 load_once(const uint4* from) { return *from; }
static inline void store_once(uint4* to, uint4 value) { *to = value; }

namespace cuda_on_cpu {

inline std::vector<uint4> shared;
inline int writes_beyond_shared = 0;
constexpr std::size_t guards = 4096;  // quads
constexpr uint4 poison{0x7fa5a5a5u, 0x7fa5a5a5u, 0x7fa5a5a5u, 0x7fa5a5a5u};  // NaN in every format

struct Fiber {
    ucontext_t context;
    std::vector<char> stack;
    Index index;
    bool finished = false;
};
inline ucontext_t scheduler;
inline Fiber* running = nullptr;
inline std::function<void()> body;

inline void enter() {
    body();
    running->finished = true;
    swapcontext(&running->context, &scheduler);
}

inline void run(int blocks, int x, int y, int shared_bytes, std::function<void()> kernel) {
    body = std::move(kernel);
    blockDim = {static_cast<unsigned>(x), static_cast<unsigned>(y)};
    std::vector<Fiber> fibers(static_cast<std::size_t>(x) * y);
    for (Fiber& fiber : fibers) fiber.stack.resize(256 * 1024);
    std::mt19937 generator(1);
    for (int block = 0; block < blocks; ++block) {
        blockIdx = {static_cast<unsigned>(block), 0};
        const std::size_t quads = static_cast<std::size_t>(shared_bytes + 15) / 16;
        shared.assign(quads + guards, poison);
        std::vector<Fiber*> waiting;
        for (std::size_t i = 0; i < fibers.size(); ++i) {
            Fiber& fiber = fibers[i];
            fiber.finished = false;
            fiber.index = {static_cast<unsigned>(i) % x, static_cast<unsigned>(i) / x};
            getcontext(&fiber.context);
            fiber.context.uc_stack.ss_sp = fiber.stack.data();
            fiber.context.uc_stack.ss_size = fiber.stack.size();
            fiber.context.uc_link = nullptr;
            makecontext(&fiber.context, enter, 0);
            waiting.push_back(&fiber);
        }
        while (!waiting.empty()) {  // from one barrier to the next
            std::shuffle(waiting.begin(), waiting.end(), generator);
            std::vector<Fiber*> at_barrier;
            for (Fiber* fiber : waiting) {
                running = fiber;
                threadIdx = fiber->index;
                swapcontext(&scheduler, &fiber->context);
                if (!fiber->finished) at_barrier.push_back(fiber);
            }
            waiting = std::move(at_barrier);
        }
        for (std::size_t i = quads; i < shared.size(); ++i)
            if (std::memcmp(&shared[i], &poison, sizeof poison) != 0) ++writes_beyond_shared;
    }
}

template <class... A, std::size_t... I>
void call(void (*kernel)(A...), void** arguments, std::index_sequence<I...>) {
    kernel(*static_cast<A*>(arguments[I])...);
}
template <class... A>
void launch(void (*kernel)(A...), int blocks, int x, int y, int shared_bytes, void** arguments) {
    run(blocks, x, y, shared_bytes, [=] { call(kernel, arguments, std::index_sequence_for<A...>{}); });
}

}  // namespace cuda_on_cpu

inline void __syncthreads() {
    cuda_on_cpu::Fiber* self = cuda_on_cpu::running;
    swapcontext(&self->context, &cuda_on_cpu::scheduler);
    threadIdx = self->index;
}
