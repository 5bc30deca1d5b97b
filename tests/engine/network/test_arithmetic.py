"""What operations multiply: attention by hand-computed numbers, and nothing without a formula in silence."""

import dataclasses
import re
import sys
from contextlib import nullcontext

import pytest
import torch
import torch.nn.attention.varlen  # which registers its operations
import torch.nn.functional as F
from small_trials import spec, train_in_suite
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import flex_attention
from torch.utils.flop_counter import flop_registry

from suite import registry
from suite.engine.cost.flops import PRODUCTS, count
from suite.engine.network.arithmetic import FREE, attention_of, is_attention, is_dense, multiply_adds, name_of
from suite.engine.network.forward_pass import ForwardPass, _uncompiled
from suite.ops import convert
from suite.plan import OpPlan
from suite.trials.folder.records import read_record

SHAPE = (3, 8, 8)
TOKENS, WIDTH = 4, 16


@torch.library.custom_op("arithmetic_tests::gram", mutates_args=())
def gram(tokens: torch.Tensor) -> torch.Tensor:
    return tokens @ tokens.mT @ tokens


@torch.library.custom_op("arithmetic_tests::gram_into", mutates_args=("out",))
def gram_into(tokens: torch.Tensor, out: torch.Tensor) -> None:
    out.copy_(tokens @ tokens.mT @ tokens)


gram.register_autograd(lambda ctx, grad: grad)


class Model(nn.Module):
    """A convolution to four tokens of width 16, anything, and a linear layer."""

    def __init__(self, between, part=None):
        super().__init__()
        self.patches, self.head = nn.Conv2d(3, WIDTH, 4, 4), nn.Linear(WIDTH, 4)
        self.between, self.part = between, part

    def forward(self, images):
        tokens = self.patches(images).flatten(2).transpose(1, 2).contiguous()
        return self.head(self.between(self, tokens).mean(1))


def heads(tokens, number=2):
    return tokens.unflatten(2, (number, -1)).transpose(1, 2)


def attend(model, tokens, **options):
    return F.scaled_dot_product_attention(*[heads(tokens)] * 3, **options).transpose(1, 2).flatten(2)


def attend_in_groups(model, tokens):
    """Four heads of queries; keys and values have two."""
    few = heads(tokens[..., : WIDTH // 2])
    return F.scaled_dot_product_attention(heads(tokens, 4), few, few, enable_gqa=True).transpose(1, 2).flatten(2)


def attend_without_gradients(model, tokens):
    with torch.inference_mode():
        found = attend(model, tokens.detach())
    return found.clone()


def flex(model, tokens):
    detached = heads(tokens.detach())  # on the CPU, torch refuses gradients
    return flex_attention(detached, detached, detached).transpose(1, 2).flatten(2)


def flops(row):
    return [row.flops(product) for product in PRODUCTS]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("backend", [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION])
def test_attention_has_the_same_row_with_each_backend_and_type(backend, dtype):
    with sdpa_kernel(backend):
        counts = count(Model(attend).to(dtype), SHAPE)
    row = counts.layers[":attention"]
    # Queries by keys, and weights by values; two data gradients of each product.
    assert flops(row) == [2 * 2 * TOKENS * TOKENS * WIDTH, 4 * 2 * TOKENS * TOKENS * WIDTH, 0]
    assert (row.in_channels, row.input, row.output) == (WIDTH, (TOKENS, 1), (TOKENS, 1))
    assert counts.not_counted == ()


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize(
    "between",
    [
        lambda model, tokens: attend(model, tokens, is_causal=True),
        lambda model, tokens: attend(model, tokens, attn_mask=torch.zeros(TOKENS, TOKENS)),
        attend_in_groups,
        attend_without_gradients,
        flex,
    ],
    ids=["causal", "mask", "grouped queries", "inference mode", "flex"],
)
def test_every_kind_of_attention_multiplies_all_pairs_for_each_head_of_the_queries(between):
    counts = count(Model(between), SHAPE)
    row = counts.layers[":attention"]
    assert (row.macs, row.in_channels) == (2 * TOKENS * TOKENS * WIDTH, WIDTH)
    assert counts.not_counted == ()


@pytest.mark.parametrize("frozen", [False, True])
def test_the_fast_paths_of_torchs_modules_are_not_taken(frozen):
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 32, batch_first=True).requires_grad_(not frozen)
    counts = count(Model(lambda model, tokens: model.part(tokens), layer), SHAPE)
    macs = {name.removeprefix("part."): cost.macs for name, cost in counts.layers.items() if name.startswith("part.")}
    assert macs == {
        "self_attn:in_proj_weight": TOKENS * WIDTH * 3 * WIDTH,
        "self_attn:attention": 2 * TOKENS * TOKENS * WIDTH,
        "self_attn:out_proj.weight": TOKENS * WIDTH * WIDTH,
        "linear1": TOKENS * WIDTH * 32,
        "linear2": TOKENS * 32 * WIDTH,
    }
    assert counts.not_counted == ()


def meta(*shape):
    return torch.empty(*shape, device="meta")


def operations():
    """Return every operation of this version of torch."""
    found = []
    for full in torch._C._dispatch_get_all_op_names():
        library, _, name = full.partition("::")
        name, _, overload = name.partition(".")
        if library == "aten" and not torch._C._dispatch_has_kernel_for_dispatch_key(full, "CompositeImplicitAutograd"):
            found.append(getattr(getattr(torch.ops.aten, name), overload or "default"))
    return found


# Of two images, 5 queries, 7 keys, 4 heads of the queries and 2 of the keys, of widths 8 and 16.
HEADS_FIRST = {"query": (2, 4, 5, 8), "key": (2, 2, 7, 8), "value": (2, 2, 7, 16)}
TOKENS_FIRST = {"query": (2, 5, 4, 8), "key": (2, 7, 2, 8), "value": (2, 7, 2, 16)}
MACS = 2 * 4 * 5 * 7 * (8 + 16)
FUSED = [
    func
    for func in operations()
    if re.match("_(scaled_dot_product|flash|efficient|cudnn)", name_of(func)) and "attention" in name_of(func)
]


def given(func, shapes):
    """Return the arguments of an operation in order, with queries, keys and values of some shapes."""
    return tuple(meta(*shapes[one.name]) if one.name in shapes else None for one in func._schema.arguments)


@pytest.mark.parametrize("func", FUSED, ids=str)
def test_each_fused_attention_of_torch_is_counted_by_its_shapes(func):
    first = ("_flash", "_efficient")
    arguments = given(func, TOKENS_FIRST if name_of(func).startswith(first) else HEADS_FIRST)
    times = 2 if name_of(func).endswith("_backward") else 1
    assert multiply_adds(func, arguments, {}, meta(1)) == times * MACS
    found = attention_of(func, arguments, {})
    assert (found.query, found.key, found.value) == tuple(HEADS_FIRST.values())


def test_the_operands_of_fused_attention_have_heads_before_tokens():
    watch = ForwardPass(Model(attend))
    func = torch.ops.aten._flash_attention_forward.default
    watch.record(func, given(func, TOKENS_FIRST), {}, meta(1))
    (product,) = watch.products
    assert (product.attention, product.macs) == (True, MACS)
    assert [operand.shape for operand in product.operands] == list(HEADS_FIRST.values())


@pytest.mark.parametrize("name", ["_flash_attention_forward", "_efficient_attention_forward", "_varlen_attn"])
@pytest.mark.parametrize("known", [True, False])
def test_sequences_of_several_lengths_attend_within_themselves(name, known):
    func = getattr(torch.ops.torch_attn if name == "_varlen_attn" else torch.ops.aten, name).default
    row = (1,) if name.startswith("_eff") else ()
    shapes = {"query": (*row, 5, 4, 8), "key": (*row, 7, 2, 8), "value": (*row, 7, 2, 16)}
    ends = {"q": torch.tensor([0, 2, 5]), "k": torch.tensor([0, 6, 7])}  # 2 by 6, and 3 by 1
    arguments = []
    for argument, tensor in zip(func._schema.arguments, given(func, shapes), strict=True):
        found = re.fullmatch(r"(cum_seq|cu_seq|cu_seqlens|max|max_seqlen)_([qk])", argument.name)
        if found is None:
            arguments.append(tensor)
        elif found[1].startswith("cu"):
            arguments.append(ends[found[2]] if known else ends[found[2]].to("meta"))
        else:
            arguments.append({"q": 3, "k": 6}[found[2]])
    # Without values, both sequences are as long as the longest.
    pairs = 2 * 6 + 3 * 1 if known else 2 * 3 * 6
    assert multiply_adds(func, tuple(arguments), {}, meta(1)) == 4 * pairs * (8 + 16)
    assert attention_of(func, tuple(arguments), {}).query == (2, 4, 3, 8)


def test_keys_may_lie_as_the_queries_do_or_in_pages_of_an_unknown_number():
    func = torch.ops.torch_attn._varlen_attn.default
    arguments = {name: meta(7, 2, 8) for name in ("query", "key", "value")}
    arguments |= {"cu_seq_q": torch.tensor([0, 3, 7]), "cu_seq_k": None, "max_q": 4, "max_k": 4}
    assert multiply_adds(func, (), arguments, meta(1)) == 2 * (3 * 3 + 4 * 4) * (8 + 8)
    assert multiply_adds(func, (), arguments | {"block_table": meta(2, 4)}, meta(1)) is None


# Parts of names of operations that multiply, and what has such a name without a product.
MULTIPLY = (
    r"mm\b|mm_|matmul|conv(?!ert)|linalg_(?!vector_norm)|fft_.2|rnn|lstm|gru|attention|addr|dot|mv\b|linear(?!\d)|"
)
MULTIPLY += r"cdist|pdist|cholesky|solve|svd|qr\b|hspmm|encoder_layer|embedding_bag|affine_grid"
ELEMENTWISE = r"_thnn_fused_|igamma|lgamma"


def test_no_operation_that_multiplies_is_taken_for_free():
    tensor = meta(2, 2)
    counted = {str(packet).removeprefix("aten.") for packet in flop_registry}
    products = [func for func in operations() if re.search(MULTIPLY, name_of(func)) and name_of(func) not in counted]
    products = [func for func in products if not (re.search(ELEMENTWISE, name_of(func)) or is_attention(name_of(func)))]
    products = [func for func in products if "Tensor" in str(func._schema).partition("->")[0]]
    silent = [str(func) for func in products if multiply_adds(func, (tensor, tensor), {}, tensor) == 0]
    assert silent == []
    names = {name_of(func) for func in products}
    assert {"mv", "dot", "_int_mm", "_grouped_mm", "_cdist_forward", "mkldnn_rnn_layer", "_trilinear"} < names


@pytest.mark.parametrize("name", ["native_layer_norm_backward", "nll_loss_nd", "_foreach_norm", "squeeze_", "t_copy"])
def test_gradients_and_other_forms_of_free_operations_are_free(name):
    packet = getattr(torch.ops.aten, name)
    func = getattr(packet, packet.overloads()[0])
    assert multiply_adds(func, (meta(2, 2),), {}, meta(2, 2)) == 0


def test_operations_of_higher_order_are_unknown_but_for_attention():
    tensor = meta(2, 2)
    assert multiply_adds(torch.ops.higher_order.cond, (True, None, None, (tensor,)), {}, tensor) is None


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_sparse_and_nested_tensors_are_not_dense():
    parts = [torch.zeros(2, 3), torch.zeros(1, 3)]
    assert is_dense(parts[0].T)
    assert not is_dense(parts[0].to_sparse())
    assert not is_dense(torch.nested.nested_tensor(parts))
    assert not is_dense(torch.nested.nested_tensor(parts, layout=torch.jagged))


def test_every_name_that_is_taken_for_free_exists():
    names = {re.sub(r"(?<=[a-z])[123]d$|_nd$", "", name_of(func).removesuffix("_backward")) for func in operations()}
    # Of later versions than 2.11.
    assert FREE - names <= {"_upsample_lanczos2d_aa"}


ORDINARY = [
    nn.Sequential(nn.GroupNorm(2, 16), nn.Hardswish(), nn.GLU(1), nn.PReLU(), nn.InstanceNorm2d(8), nn.AvgPool2d(2)),
    nn.Sequential(nn.ReflectionPad2d(1), nn.ZeroPad2d(1), nn.LPPool2d(2, 2), nn.Softmax(1), nn.Dropout(), nn.RReLU()),
    nn.Sequential(nn.Upsample(scale_factor=2, mode="bilinear"), nn.AdaptiveMaxPool2d(2), nn.PixelShuffle(2)),
    nn.Sequential(nn.Upsample(scale_factor=2, mode="bicubic"), nn.LocalResponseNorm(2), nn.LogSigmoid(), nn.Unfold(2)),
]


@pytest.mark.parametrize("part", ORDINARY, ids=range(len(ORDINARY)))
def test_ordinary_modules_without_products_are_not_named(part):
    class Ordinary(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.part, self.last = nn.Conv2d(3, 16, 4, 4), part, nn.LazyLinear(4)

        def forward(self, images):
            found = self.part(self.first(images)).flatten(1)
            values, places = found.topk(2)
            found = found.scatter_add(1, places, values).clamp_(0, 1).cumsum(1)
            found = torch.stack(torch._foreach_mul(list(found), 2.0)).unsqueeze_(0).squeeze_(0)
            found = F.normalize(found) + torch.rand_like(found) + found.roll(1, 1).std(1, keepdim=True)
            return self.last(torch.where(found > found.median(), found, found.sort(1)[0]))

    model = Ordinary()
    model.eval()(torch.zeros(2, *SHAPE))  # the last layer takes its width
    assert count(model, SHAPE).not_counted == ()


class Adapted(nn.Linear):
    """A linear layer with a product of its own beside that of its weight."""

    def __init__(self):
        super().__init__(WIDTH, WIDTH)
        self.down, self.up = nn.Parameter(torch.zeros(2, WIDTH)), nn.Parameter(torch.zeros(WIDTH, 2))

    def forward(self, tokens):
        return super().forward(tokens) + tokens @ self.down.T @ self.up.T


def into(model, tokens):
    out = torch.zeros_like(tokens)
    gram_into(tokens.detach(), out)
    return out


def gradient(model, tokens):
    tokens = tokens.detach().requires_grad_()
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return torch.autograd.grad(attend(model, tokens).sum(), tokens)[0]


UNKNOWN = "(multiply-adds unknown)"
BACKWARD = "_scaled_dot_product_flash_attention_for_cpu_backward"


@pytest.mark.parametrize(
    ("between", "part", "expected"),
    [
        (lambda model, tokens: gram(tokens), None, ["arithmetic_tests::gram in the model's own forward " + UNKNOWN]),
        (into, None, ["arithmetic_tests::gram_into in the model's own forward " + UNKNOWN]),
        (gradient, None, [f"{BACKWARD} in the model's own forward (1,024 multiply-adds per image)"]),
        (
            lambda model, tokens: tokens @ torch.linalg.inv(torch.eye(WIDTH) + tokens.mean()),
            None,
            ["linalg_inv_ex in the model's own forward " + UNKNOWN],
        ),
        (
            lambda model, tokens: torch.stack([torch.eye(TOKENS).to_sparse_csr() @ one for one in tokens]),
            None,
            ["mm in the model's own forward " + UNKNOWN],
        ),
        (
            lambda model, tokens: model.part(tokens),
            Adapted(),
            ["further products in 'part' (256 multiply-adds per image)"],
        ),
        (
            lambda model, tokens: model.part(tokens),
            nn.utils.parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH)),
            [f"{op} in 'part.parametrizations.weight.0' {UNKNOWN}" for op in ("mv", "vdot")],
        ),
    ],
    ids=["custom", "custom in place", "gradient", "inverse", "sparse", "subclass of a layer", "parametrization"],
)
@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_what_multiplies_without_a_row_is_named(between, part, expected):
    assert list(count(Model(between, part), SHAPE).not_counted) == expected


def test_what_the_plan_of_a_layer_multiplies_is_not_the_networks():
    model = Model(lambda model, tokens: model.part(tokens), nn.Linear(WIDTH, WIDTH))
    convert(model)["part"].op_plan = OpPlan(weight_forward=lambda weight, site: gram(weight))
    counts = count(model, SHAPE)
    assert counts.layers["part"].macs == TOKENS * WIDTH * WIDTH
    assert counts.not_counted == ()


def test_products_in_place_and_into_a_tensor_have_rows():
    def between(model, tokens):
        found = tokens.clone().baddbmm_(tokens @ tokens.mT, tokens)
        with torch.no_grad():
            return found + torch.mm(tokens[0], model.part.weight.T, out=torch.empty(TOKENS, 8)).mean()

    counts = count(Model(between, nn.Linear(WIDTH, 8)), SHAPE)
    one = TOKENS * TOKENS * WIDTH
    assert [value // 2 for value in flops(counts.layers[":matmul"])] == [2 * one, 4 * one, 0]
    row = counts.layers[":part.weight"]
    assert (row.macs, row.in_channels, row.out_channels) == (TOKENS * WIDTH * 8, WIDTH, 8)
    assert counts.not_counted == ()


def test_a_compiled_part_is_counted_as_if_it_were_not_compiled():
    part = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU())
    between = lambda model, tokens: attend(model, model.part(tokens))  # noqa: E731
    plain = count(Model(between, part), SHAPE)
    compiled = count(Model(between, torch.compile(part, backend="eager")), SHAPE)
    assert [row.macs for row in compiled.layers.values()] == [row.macs for row in plain.layers.values()]
    assert compiled.not_counted == ()


def test_flex_attention_is_not_compiled_either_and_the_compiler_is_not_imported_for_other_models(monkeypatch):
    monkeypatch.setattr(torch.compiler, "set_stance", lambda stance: stance)
    monkeypatch.delitem(sys.modules, "torch._dynamo", raising=False)
    assert _uncompiled() == "force_eager"
    monkeypatch.delitem(sys.modules, "torch.nn.attention.flex_attention")
    assert isinstance(_uncompiled(), nullcontext)


def test_what_multiplies_only_in_training_is_counted_for_training():
    def between(model, tokens):
        if not model.training:
            return tokens
        return tokens @ tokens.mT @ gram(tokens) + model.part(tokens.unsqueeze(1)).mean()

    counts = count(Model(between, nn.Conv2d(1, 2, 3, padding=1)), SHAPE)
    macs = {name: row.macs for name, row in counts.layers.items() if row.training_only}
    assert macs == {":matmul": 2 * TOKENS * TOKENS * WIDTH, "part": TOKENS * WIDTH * 2 * 3 * 3}
    assert counts.not_counted == ("arithmetic_tests::gram in the model's own forward " + UNKNOWN,)


class Grams(nn.Module):
    """A network with an operation of another library."""

    def __init__(self, num_classes=10, input_shape=(1, 8, 8)):
        super().__init__()
        self.head = nn.Linear(input_shape[1] * input_shape[2], num_classes)

    def forward(self, images):
        return self.head(gram(images[:, 0]).flatten(1))


def test_an_unknown_operation_is_named_in_the_record(tmp_path, monkeypatch):
    monkeypatch.setitem(registry._objects, ("model", "grams"), Grams)
    small = spec("dense", epochs=1, train_images=32, test_images=32, batch_size=16)
    folder = train_in_suite(tmp_path, dataclasses.replace(small, model="grams"))
    line = f"arithmetic_tests::gram in the model's own forward {UNKNOWN}"
    assert read_record(folder).provenance["not_counted"] == [line]
