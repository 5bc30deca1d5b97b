// Selection of the path that prunes a run of groups.
#pragma once

#include "prune_blocks.h"
#include "unbiased_blocks.h"

namespace pdt {

template <class Format, int M, Output What>
void prune_with(const Problem& problem, const Run<Format, What>& run) {
    const bool whole = problem.whole_groups() && problem.m == M;
    const Run<Format, Target<Format, What>::unstreamed> plain{run.first, run.last, run.from,
                                                              run.to.with_values(run.to.values)};
    switch (problem.mode) {
        case mode_magnitude:
            if (whole) return prune_whole_groups<Format, M>(problem, run);
            return prune_any_groups<Format, M>(problem, plain);
        case mode_random:
            if (whole && run.first * M % 8 == 0) return prune_whole_groups_at_random<Format, M>(problem, run);
            return prune_any_groups_at_random<Format>(problem, plain);
        default:
            if (whole && run.first % 4 == 0) return prune_whole_groups_unbiased<Format, M>(problem, run);
            return prune_any_groups_unbiased<Format, M>(problem, plain);
    }
}

template <class Format, Output What>
void prune_run(const Problem& problem, const Run<Format, What>& run) {
    if (problem.m <= 2) return prune_with<Format, 2>(problem, run);
    if (problem.m <= 4) return prune_with<Format, 4>(problem, run);
    if (problem.m <= 8) return prune_with<Format, 8>(problem, run);
    if (problem.m <= 16) return prune_with<Format, 16>(problem, run);
    return prune_with<Format, 32>(problem, run);
}

}  // namespace pdt
