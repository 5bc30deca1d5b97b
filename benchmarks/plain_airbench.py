"""The recipe of airbench94 in a plain loop, without the suite: what its dense training is compared with.

    OMP_NUM_THREADS=1 python -m benchmarks.plain_airbench DATA_ROOT SEED [--width 0.5]

Source: K. Jordan, "94 % on CIFAR-10 in 3.29 seconds on a single GPU" (arXiv 2404.00498) and its repository. DATA_ROOT
has `cifar10/{train,test}/<class>/*`. It prints the accuracy on the test images, with one view and with six.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.io import ImageReadMode, decode_image

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
BATCH, EPOCHS, PER_EPOCH = 1024, 9.9, 50_000 // 1024
STEPS = int(EPOCHS * PER_EPOCH) + 1  # 476
PEAK = 11.5 / BATCH / 7.667
DECAY = 0.0153 * BATCH / (BATCH * 7.667)


def images_of(folder: Path) -> tuple[Tensor, Tensor]:
    """Return normalised images (N, 3, 32, 32) and their classes (N,)."""
    classes = sorted(path for path in folder.iterdir() if path.is_dir())
    files = [(path, number) for number, one in enumerate(classes) for path in sorted(one.iterdir())]
    images = torch.stack([decode_image(str(path), ImageReadMode.RGB) for path, _ in files]).float() / 255
    images = (images - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)
    return images, torch.tensor([number for _, number in files])


class Norm(nn.BatchNorm2d):
    """Batch normalisation without a trained scale."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, eps=1e-12, momentum=0.4)
        self.weight.requires_grad_(False)


class Net(nn.Module):
    """The network, at a share `width` of its channels."""

    def __init__(self, width: float, patches: Tensor) -> None:
        super().__init__()
        self.whiten = nn.Conv2d(3, 24, 2)
        nn.init.zeros_(self.whiten.bias)
        values, vectors = torch.linalg.eigh(patches.T @ patches / len(patches))
        filters = (vectors / (values + 5e-4).sqrt()).T.flip(0).reshape(12, 3, 2, 2)
        self.whiten.weight.data = torch.cat((filters, -filters))
        self.whiten.weight.requires_grad_(False)
        groups, before = [], 24
        for channels in (round(width * 64), round(width * 256), round(width * 256)):
            first, second = (nn.Conv2d(n, channels, 3, padding=1, bias=False) for n in (before, channels))
            for conv in (first, second):
                nn.init.dirac_(conv.weight.data[: conv.in_channels])
            groups += [first, nn.MaxPool2d(2), Norm(channels), nn.GELU(), second, Norm(channels), nn.GELU()]
            before = channels
        self.groups = nn.Sequential(*groups, nn.MaxPool2d(3), nn.Flatten())
        self.head = nn.Linear(before, 10, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.groups(F.gelu(self.whiten(x)))) / 9


def translated(images: Tensor) -> Tensor:
    """Return each image moved by up to 2 pixels in both directions, with reflected edges."""
    padded = F.pad(images, (2,) * 4, "reflect")
    rows, columns = (torch.randint(5, (len(images), 1)) + torch.arange(32) for _ in range(2))
    index = torch.arange(len(images))
    return padded.permute(0, 2, 3, 1)[index[:, None, None], rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


@torch.no_grad()
def accuracies(net: Net, images: Tensor, labels: Tensor) -> tuple[float, float]:
    """Return the accuracy with one view, and with six."""
    net.eval()
    one, six = [], []
    for batch in images.split(500):
        padded = F.pad(batch, (1,) * 4, "reflect")
        views = [(batch, 0.5), (padded[:, :, :32, :32], 0.25), (padded[:, :, 2:, 2:], 0.25)]
        with torch.autocast("cpu", torch.bfloat16):
            one.append(net(batch).float())
            six.append(sum(weight * (net(view).float() + net(view.flip(3)).float()) / 2 for view, weight in views))
    net.train()
    return tuple((torch.cat(several).argmax(1) == labels).float().mean().item() for several in (one, six))


def train(root: Path, seed: int, width: float) -> Net:
    """Train a network."""
    torch.manual_seed(seed)
    images, labels = images_of(root / "train")
    drawn = images[torch.randperm(len(images))[:5000]]
    patches = F.unfold(drawn, 2).transpose(1, 2).reshape(-1, 12)
    net = Net(width, patches).to(memory_format=torch.channels_last).train()
    biases = [module.bias for module in net.modules() if isinstance(module, Norm)]
    others = [p for p in net.parameters() if p.requires_grad and all(p is not bias for bias in biases)]
    groups = [{"params": others, "peak": PEAK}, {"params": biases, "peak": 64 * PEAK}]
    optimizer = torch.optim.SGD(
        [{**group, "lr": group["peak"], "weight_decay": DECAY / group["peak"]} for group in groups],
        momentum=0.85,
        nesterov=True,
    )
    up = int(0.23 * STEPS)
    mirrored = torch.rand(len(images)) < 0.5
    average: dict[str, Tensor] = {}
    step = 0
    for epoch in range(10):
        if epoch == 3:
            net.whiten.bias.requires_grad_(False)
            net.whiten.bias.grad = None
        now = mirrored if epoch % 2 == 0 else ~mirrored
        order, moved = torch.randperm(len(images)), images.clone()
        moved[now] = moved[now].flip(3)
        for chosen in order.split(BATCH)[:PER_EPOCH]:
            if step == STEPS:
                break
            share = 0.2 + 0.8 * step / up if step < up else 1 - 0.93 * (step - up) / (STEPS - up)
            for group in optimizer.param_groups:
                group["lr"] = share * group["peak"]
            batch = translated(moved[chosen]).contiguous(memory_format=torch.channels_last)
            with torch.autocast("cpu", torch.bfloat16):
                logits = net(batch)
            loss = F.cross_entropy(logits.float(), labels[chosen], label_smoothing=0.2, reduction="sum")
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            step += 1
            if epoch >= 3 and (not average or step % 5 == 0):
                _move(net, average, 0.95**5 * (step / STEPS) ** 3)
        if average:
            net.load_state_dict(average)
    return net


def _move(net: Net, average: dict[str, Tensor], decay: float) -> None:
    """Move the average towards the network, which becomes the average."""
    state = net.state_dict()
    if not average:
        average.update({name: value.clone() for name, value in state.items()})
        return
    for name, value in state.items():
        if value.is_floating_point():
            average[name].lerp_(value, 1 - decay)
            value.copy_(average[name])


def main() -> None:
    """Train once, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path, metavar="DATA_ROOT")
    parser.add_argument("seed", type=int)
    parser.add_argument("--width", type=float, default=0.5)
    typed = parser.parse_args()
    torch.set_flush_denormal(True)
    begin = time.process_time()
    net = train(typed.root / "cifar10", typed.seed, typed.width)
    seconds = time.process_time() - begin
    one, six = accuracies(net, *images_of(typed.root / "cifar10" / "test"))
    print(
        f"width {typed.width:g}, seed {typed.seed}: {100 * one:.2f} % with one view, {100 * six:.2f} % with six; "
        f"{seconds:.0f} s of processor time; torch {torch.__version__}"
    )


if __name__ == "__main__":
    main()
