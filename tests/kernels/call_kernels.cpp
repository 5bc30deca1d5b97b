// Calls the kernels of the CPU for another process, which writes calls to the standard input of this program. So it runs
// kernels of another processor, in an emulator that has no Python.
//
// A call is the number of a function, the number of its arguments, and each argument: its kind, then a number (kind 0),
// the size and bytes of memory (1), or the position of an earlier argument whose memory it shares (2); all are int64. The
// answer is the status, then the bytes of all memory in the order of the arguments.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

extern "C" {
int pdt_prune_nm(const void*, void*, int64_t, int64_t, int64_t, int, int, int, int, int, uint64_t, int);
int pdt_compress_nm(const void*, float*, int16_t*, int64_t, int64_t, int64_t, int, int, int, int, int, uint64_t, int);
int pdt_data_gradient(const int64_t*, const float*, const int16_t*, const float*, void*, int, int);
int pdt_weight_gradient(const int64_t*, const float*, const int16_t*, const void*, float*, int, int);
int pdt_blocks(const int64_t*, void*, float*, int, int, int);
int pdt_sum_taps(const int64_t*, const float*, float*, int64_t, int64_t, const int64_t*, const int32_t*, const int64_t*,
                 const int32_t*, const float*, int);
int pdt_sum_products(const int64_t*, const float*, const float*, float*, int64_t, int64_t, int64_t, const int32_t*,
                     const int32_t*, int);
int pdt_block_images();
int pdt_vector_bits();
}

namespace {

void read_bytes(void* to, std::size_t size) {
    if (size > 0 && std::fread(to, 1, size, stdin) != size) std::exit(2);
}

int64_t read_number() {
    int64_t number;
    if (std::fread(&number, 1, sizeof number, stdin) != sizeof number) std::exit(0);  // the other process has ended
    return number;
}

void write_bytes(const void* from, std::size_t size) {
    if (size > 0 && std::fwrite(from, 1, size, stdout) != size) std::exit(2);
}

// An argument converts to the type of the parameter that it is given for.
struct Argument {
    int64_t number;
    void* memory;
    operator int() const { return static_cast<int>(number); }
    operator int64_t() const { return number; }
    operator uint64_t() const { return static_cast<uint64_t>(number); }
    template <class Type>
    operator Type*() const {
        return static_cast<Type*>(memory);
    }
};

int call(int64_t function, const std::vector<Argument>& a) {
    switch (function) {
        case 0: return pdt_prune_nm(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11]);
        case 1: return pdt_compress_nm(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11], a[12]);
        case 2: return pdt_data_gradient(a[0], a[1], a[2], a[3], a[4], a[5], a[6]);
        case 3: return pdt_weight_gradient(a[0], a[1], a[2], a[3], a[4], a[5], a[6]);
        case 4: return pdt_blocks(a[0], a[1], a[2], a[3], a[4], a[5]);
        case 5: return pdt_sum_taps(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10]);
        case 6: return pdt_sum_products(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9]);
        case 7: return pdt_block_images();
        default: return pdt_vector_bits();
    }
}

}  // namespace

int main() {
    for (;;) {
        const int64_t function = read_number();
        std::vector<Argument> arguments(static_cast<std::size_t>(read_number()));
        std::vector<std::pair<void*, std::size_t>> memory;
        for (Argument& argument : arguments) {
            const int64_t kind = read_number();
            argument = {read_number(), nullptr};
            if (kind == 2) argument.memory = arguments[static_cast<std::size_t>(argument.number)].memory;
            if (kind != 1) continue;
            const std::size_t size = static_cast<std::size_t>(argument.number);
            argument.memory = std::aligned_alloc(64, (size + 64) / 64 * 64);
            read_bytes(argument.memory, size);
            memory.emplace_back(argument.memory, size);
        }
        const int64_t status = call(function, arguments);
        write_bytes(&status, sizeof status);
        for (const auto& [from, size] : memory) {
            write_bytes(from, size);
            std::free(from);
        }
        std::fflush(stdout);
    }
}
