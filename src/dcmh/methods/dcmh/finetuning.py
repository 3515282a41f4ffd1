"""Fine-tuning an image network before the hash layers learn: it learns to name the labels of the training pictures.

Labels of single pictures say more than which pairs share one. Random crops, mirrored pictures, other colours and mixtures of
two pictures (Zhang et al., mixup, ICLR 2018) keep some thousand pictures from being learned by heart. The hash layers then
learn from the features of the tuned network, as from those of any other frozen one. The constants were chosen by MAP on
validation items of coco12k (docs/recipe.md).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from dcmh.methods.dcmh.gpu import Pixels
from dcmh.networks.hashing import PixelNetwork

SIZE = 384  # pixels; more than the network was pre-trained with, so that small things count
EPOCHS = 12
BATCH = 64
RATE, HEAD_RATE = 1.5e-4, 2e-3  # of the network and of the classifier, which starts from nothing
DECAY = 0.05
DROPOUT = 0.3
MEMORY = 0.99  # of the moving average of the weights, which is what is kept
SMALLEST_CROP = 0.65  # of the area
COLOUR = 0.2
MIXUP = 0.2  # both parameters of the beta distribution that the shares of two pictures are drawn from


def tune_by_labels(network: PixelNetwork, pixels: Pixels, rows: Tensor, labels: Tensor) -> None:
    """Tune all layers of the image network to predict the labels (n, l) of the pictures of these rows."""
    backbone, batch_size = network.backbone.eval(), min(BATCH, len(rows))
    backbone.requires_grad_(True)
    with torch.no_grad():
        width = network.features(pixels[rows[:1]]).shape[1]
    classifier = nn.Linear(width, labels.shape[1]).to(labels)
    nn.init.zeros_(classifier.weight)
    nn.init.constant_(classifier.bias, -3.0)  # most labels are absent
    weights = list(backbone.parameters())
    groups = [{"params": weights, "lr": RATE}, {"params": list(classifier.parameters()), "lr": HEAD_RATE}]
    optimiser = torch.optim.AdamW(groups, weight_decay=DECAY, fused=True)
    rates = [group["lr"] for group in optimiser.param_groups]
    kept = [weight.detach().clone() for weight in weights]
    mixture = torch.distributions.Beta(MIXUP, MIXUP)
    steps = EPOCHS * (len(rows) // batch_size)
    step = 0
    for _ in range(EPOCHS):
        order = torch.randperm(len(rows)).to(rows.device)[: len(rows) // batch_size * batch_size]
        for batch in rows[order].split(batch_size):
            cosine = min(1.0, (step + 1) / (0.05 * steps)) * (0.5 + 0.5 * math.cos(math.pi * step / steps))
            for group, rate in zip(optimiser.param_groups, rates, strict=True):
                group["lr"] = rate * cosine
            share, others = float(mixture.sample()), torch.randperm(len(batch)).to(rows.device)
            pictures = varied(pixels[batch])
            pictures = pictures.lerp(pictures[others], share)
            logits = classifier(functional.dropout(network.features(pictures), DROPOUT))
            named = labels[batch].lerp(labels[batch][others], share)
            each = functional.binary_cross_entropy_with_logits(logits, named)
            optimiser.zero_grad(set_to_none=True)
            (20 * each).backward()
            nn.utils.clip_grad_norm_(weights, 5.0)
            optimiser.step()
            step += 1
            memory = min(MEMORY, (step + 1) / (step + 10))
            torch._foreach_lerp_(kept, [weight.detach() for weight in weights], 1 - memory)
    with torch.no_grad():
        for weight, average in zip(weights, kept, strict=True):
            weight.copy_(average)
    backbone.requires_grad_(False)


def varied(pixels: Tensor) -> Tensor:
    """Pictures (n, 3, size, size), 0..255: randomly cropped, stretched by up to a sixth, mirrored, and in other colours."""
    count, device = len(pixels), pixels.device

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return torch.empty(count, *shape, device=device).uniform_(low, high)

    scale, stretch = uniform(SMALLEST_CROP, 1).sqrt(), uniform(-0.15, 0.15).exp()
    width, height = (scale * stretch).clamp(max=1), (scale / stretch).clamp(max=1)
    turns = torch.zeros(count, 2, 3, device=device)
    turns[:, 0, 0] = width * torch.where(uniform(0, 1) < 0.5, -1.0, 1.0)
    turns[:, 1, 1] = height
    turns[:, 0, 2] = (1 - width) * uniform(-1, 1)
    turns[:, 1, 2] = (1 - height) * uniform(-1, 1)
    grid = functional.affine_grid(turns, list(pixels.shape), align_corners=False)
    moved = functional.grid_sample(pixels.float(), grid, mode="bicubic", padding_mode="reflection", align_corners=False)
    contrast, light = uniform(1 - COLOUR, 1 + COLOUR, 3, 1, 1), uniform(-COLOUR, COLOUR, 3, 1, 1)
    coloured = (moved - 127) * contrast + 127 + 64 * light
    return coloured.clamp_(0, 255).contiguous(memory_format=torch.channels_last)
