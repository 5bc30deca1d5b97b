"""A CUDA graph on the CPU: records the operations of a step and replays them in the same memory without Python code.

It replaces `torch.cuda.CUDAGraph` on machines without a GPU. Python numbers are repeated; only the content of tensors
that existed before the capture can differ. Reading a value during the capture raises, as it does on a GPU.
"""

import contextlib

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

FORBIDDEN = {torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default}


class TapedGraph(TorchDispatchMode):
    """Records operations; `replay` repeats them and writes each result into the memory of the first one."""

    def __init__(self):
        super().__init__()
        self.tape, self.replays = [], 0

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        assert function not in FORBIDDEN, f"{function} reads back from the device while a step is captured"
        results = function(*arguments, **(keywords or {}))
        self.tape.append((function, arguments, keywords or {}, results))
        return results

    @torch.no_grad()
    def replay(self):
        self.replays += 1
        for function, arguments, keywords, results in self.tape:
            again = function(*arguments, **keywords)
            for old, new in zip(tree_flatten(results)[0], tree_flatten(again)[0], strict=True):
                if (
                    isinstance(old, torch.Tensor)
                    and old.untyped_storage().data_ptr() != new.untyped_storage().data_ptr()
                ):
                    old.copy_(new)


class Stream:
    """Replacement of a CUDA stream, without concurrency."""

    def __init__(self, device=None):
        pass

    def wait_stream(self, other):
        pass


@contextlib.contextmanager
def capture(graph, stream=None):
    with graph:
        yield


def install(monkeypatch):
    """Install the replacement in `suite.engine.training.cuda_graph`, and allow graphs on the CPU."""
    monkeypatch.setattr(torch.cuda, "CUDAGraph", TapedGraph)
    monkeypatch.setattr(torch.cuda, "graph", capture)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr("suite.engine.training.trainer.check_execution", lambda *arguments, **more: None)
