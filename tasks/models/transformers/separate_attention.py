"""Multi-head attention of torch with separate linear layers, so that methods can plan each of them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tasks.models.transformers.vision_transformer import Attention


class SeparateAttention(Attention):
    """Self-attention with the signature, the function and the weights of an `nn.MultiheadAttention`.

    That module has queries, keys and values in one parameter. It uses the weight of its output layer without a call of
    the layer. Here they are four linear layers, and heads can be removed.
    """

    def __init__(self, attention: nn.MultiheadAttention) -> None:
        """Copy the weights.

        Args:
            attention: Self-attention over (N, T, C) with biases and without dropout.

        Raises:
            ValueError: The module has settings that the copy does not have.
        """
        plain = attention.batch_first and attention.in_proj_bias is not None and not attention.dropout
        if not plain or attention.bias_k is not None or attention.add_zero_attn:
            raise ValueError("attention with dropout, without biases or with additional keys cannot be separated")
        super().__init__(attention.embed_dim, attention.num_heads)
        layers = (self.query, self.key, self.value)
        with torch.no_grad():
            weights, biases = attention.in_proj_weight.chunk(3), attention.in_proj_bias.chunk(3)
            for layer, weight, bias in zip(layers, weights, biases, strict=True):
                layer.weight.copy_(weight)
                layer.bias.copy_(bias)
            self.projection.load_state_dict(attention.out_proj.state_dict())

    def forward(  # type: ignore[override]
        self, query: Tensor, key: Tensor, value: Tensor, need_weights: bool = False
    ) -> tuple[Tensor, None]:
        """Return tokens (N, T, C), and `None` in place of the attention weights.

        Args:
            query, key, value: The same tokens (N, T, C).
            need_weights: Not used, because the weights are never returned.
        """
        return super().forward(query), None


def separate_attention(network: nn.Module) -> None:
    """Replace each `nn.MultiheadAttention` of a network whose attention is self-attention."""
    random_state = torch.get_rng_state()  # the new layers draw weights that are overwritten
    for module in list(network.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.MultiheadAttention):
                setattr(module, name, SeparateAttention(child))
    torch.set_rng_state(random_state)
