// Runs the source of the CUDA kernels on the CPU: every thread of a block is a fiber, __syncthreads waits for all of
// them, a shuffle waits for the threads of its warp, and threads run in random order, so that a missing barrier is
// detected. Writes past the block's shared memory are detected, too.
#pragma once

// Jumps between stacks are intended here; the checked variant refuses them.
#undef _FORTIFY_SOURCE
#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
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
constexpr std::size_t guards = 1024;  // quads
constexpr uint4 poison{0x7fa5a5a5u, 0x7fa5a5a5u, 0x7fa5a5a5u, 0x7fa5a5a5u};  // NaN in every format

struct Fiber {
    ucontext_t context;  // start of the fiber; later switches are jumps, which need no system call
    jmp_buf left_at;
    std::vector<char> stack;
    Index index;
    int warp;
    bool begun;
    enum { ready, at_warp, at_block, finished } state;
};
inline jmp_buf scheduler;
inline Fiber* running = nullptr;
inline std::function<void()> body;

inline void enter() {
    body();
    running->state = Fiber::finished;
    _longjmp(scheduler, 1);
}

// Runs a fiber until it waits or ends.
inline void resume(Fiber* fiber) {
    running = fiber;
    threadIdx = fiber->index;
    if (_setjmp(scheduler) != 0) return;
    if (fiber->begun) _longjmp(fiber->left_at, 1);
    fiber->begun = true;
    setcontext(&fiber->context);
}

// Releases waiting fibers: the warps whose threads are all at a shuffle, otherwise the block.
inline bool release(std::vector<Fiber>& fibers) {
    const auto let_go = [&](int warp, int barrier) {
        const auto of_warp = [&](const Fiber& fiber) { return warp < 0 || fiber.warp == warp; };
        bool any = false;
        for (const Fiber& fiber : fibers)
            if (of_warp(fiber) && fiber.state != Fiber::finished) {
                if (fiber.state != barrier) return false;
                any = true;
            }
        for (Fiber& fiber : fibers)
            if (of_warp(fiber) && fiber.state == barrier) fiber.state = Fiber::ready;
        return any;
    };
    bool found = false;
    for (int warp = 0; warp <= fibers.back().warp; ++warp) found = let_go(warp, Fiber::at_warp) || found;
    return found || let_go(-1, Fiber::at_block);
}

// Suspends the fiber until all others have reached the barrier.
inline void wait(int barrier) {
    Fiber* self = running;
    self->state = static_cast<decltype(self->state)>(barrier);
    if (_setjmp(self->left_at) == 0) _longjmp(scheduler, 1);
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
        std::vector<Fiber*> order;
        for (std::size_t i = 0; i < fibers.size(); ++i) {
            Fiber& fiber = fibers[i];
            fiber.begun = false;
            fiber.state = Fiber::ready;
            fiber.index = {static_cast<unsigned>(i) % x, static_cast<unsigned>(i) / x};
            fiber.warp = static_cast<int>(i / 32);
            getcontext(&fiber.context);
            fiber.context.uc_stack.ss_sp = fiber.stack.data();
            fiber.context.uc_stack.ss_size = fiber.stack.size();
            fiber.context.uc_link = nullptr;
            makecontext(&fiber.context, enter, 0);
            order.push_back(&fiber);
        }
        std::size_t left = fibers.size();
        while (left > 0) {  // from one barrier to the next
            std::shuffle(order.begin(), order.end(), generator);
            for (Fiber* fiber : order) {
                if (fiber->state != Fiber::ready) continue;
                resume(fiber);
                if (fiber->state == Fiber::finished) --left;
            }
            if (left > 0 && !release(fibers)) std::abort();  // some wait for a shuffle, the others for the block
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

inline void __syncthreads() { cuda_on_cpu::wait(cuda_on_cpu::Fiber::at_block); }

// Shuffle of a whole warp; the kernels use no other.
inline float __shfl_xor_sync(unsigned, float value, int distance) {
    static float given[2048];
    const int self = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x);
    given[self] = value;
    cuda_on_cpu::wait(cuda_on_cpu::Fiber::at_warp);
    const float found = given[self ^ distance];
    cuda_on_cpu::wait(cuda_on_cpu::Fiber::at_warp);
    return found;
}
