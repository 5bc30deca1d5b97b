"""A CUDA graph on the CPU: the operations of a step on a tape, run again in their memory without any Python of theirs.

It stands in for `torch.cuda.CUDAGraph` where there is no GPU: numbers of Python are repeated, only what lies in tensors
that were there before the capture can differ. Reading a value back during the capture raises, as it does on a GPU.
"""

import contextlib

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

FORBIDDEN = {torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default}


class TapedGraph(TorchDispatchMode):
    """Records what runs inside; `replay` runs it again, each result into the memory that the first one had."""

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
    """Runs nothing beside anything."""

    def __init__(self, device=None):
        pass

    def wait_stream(self, other):
        pass


@contextlib.contextmanager
def capture(graph, stream=None):
    with graph:
        yield


def install(monkeypatch):
    """Put the stand-in where `suite.training.cuda_graph` looks, and let the CPU have graphs."""
    monkeypatch.setattr(torch.cuda, "CUDAGraph", TapedGraph)
    monkeypatch.setattr(torch.cuda, "graph", capture)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr("suite.training.trainer.check_execution", lambda *arguments: None)
