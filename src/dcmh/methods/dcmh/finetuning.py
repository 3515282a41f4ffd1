"""Fine-tuning an image network before the hash layers learn: it learns to name the labels of the training pictures.

The labels of a picture carry more information than the pairs that share one. Random crops, mirroring, colour changes and
mixtures of two pictures (Zhang et al., mixup, ICLR 2018) keep the network from memorising a few thousand pictures. The hash
layers then learn from the features of the tuned network, as from those of any other frozen one. The constants were chosen by
MAP on validation items of coco12k (docs/recipe.md).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from dcmh.methods.dcmh.gpu import Pixels
from dcmh.methods.dcmh.recipes import cosine
from dcmh.networks.hashing import PixelNetwork

SIZE = 384  # pixels; more than the network was pre-trained with, so that small objects count
EPOCHS = 12
BATCH = 64
RATE, CLASSIFIER_RATE = 1.5e-4, 2e-3  # learning rates of the pre-trained network and of the new classifier
WEIGHT_DECAY = 0.05
DROPOUT = 0.3
AVERAGE_DECAY = 0.99  # of the moving average of the weights, which becomes the tuned network
SMALLEST_CROP = 0.65  # of the area
COLOUR_CHANGE = 0.2
MIXUP = 0.2  # both parameters of the beta distribution of a picture's share in a mixture


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
    groups = [{"params": weights, "lr": RATE}, {"params": list(classifier.parameters()), "lr": CLASSIFIER_RATE}]
    optimiser = torch.optim.AdamW(groups, weight_decay=WEIGHT_DECAY, fused=True)
    rates = [group["lr"] for group in optimiser.param_groups]
    averages = [weight.detach().clone() for weight in weights]
    mixture = torch.distributions.Beta(MIXUP, MIXUP)
    steps = EPOCHS * (len(rows) // batch_size)
    step = 0
    for _ in range(EPOCHS):
        order = torch.randperm(len(rows)).to(rows.device)[: len(rows) // batch_size * batch_size]
        for batch in rows[order].split(batch_size):
            for group, rate in zip(optimiser.param_groups, rates, strict=True):
                group["lr"] = rate * cosine(step, steps)
            share, others = float(mixture.sample()), torch.randperm(len(batch)).to(rows.device)
            pictures = varied(pixels[batch])
            pictures = pictures.lerp(pictures[others], share)
            logits = classifier(functional.dropout(network.features(pictures), DROPOUT))
            target = labels[batch].lerp(labels[batch][others], share)
            loss = functional.binary_cross_entropy_with_logits(logits, target)
            optimiser.zero_grad(set_to_none=True)
            (20 * loss).backward()
            nn.utils.clip_grad_norm_(weights, 5.0)
            optimiser.step()
            step += 1
            decay = min(AVERAGE_DECAY, (step + 1) / (step + 10))
            torch._foreach_lerp_(averages, [weight.detach() for weight in weights], 1 - decay)
    with torch.no_grad():
        for weight, average in zip(weights, averages, strict=True):
            weight.copy_(average)
    backbone.requires_grad_(False)


def varied(pixels: Tensor) -> Tensor:
    """Pictures (n, 3, size, size), 0..255: randomly cropped, stretched by up to a sixth, mirrored, and in other colours."""
    count, device = len(pixels), pixels.device

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return torch.empty(count, *shape, device=device).uniform_(low, high)

    scale, stretch = uniform(SMALLEST_CROP, 1).sqrt(), uniform(-0.15, 0.15).exp()
    width, height = (scale * stretch).clamp(max=1), (scale / stretch).clamp(max=1)
    affine = torch.zeros(count, 2, 3, device=device)
    affine[:, 0, 0] = width * torch.where(uniform(0, 1) < 0.5, -1.0, 1.0)
    affine[:, 1, 1] = height
    affine[:, 0, 2] = (1 - width) * uniform(-1, 1)
    affine[:, 1, 2] = (1 - height) * uniform(-1, 1)
    grid = functional.affine_grid(affine, list(pixels.shape), align_corners=False)
    moved = functional.grid_sample(pixels.float(), grid, mode="bicubic", padding_mode="reflection", align_corners=False)
    contrast = uniform(1 - COLOUR_CHANGE, 1 + COLOUR_CHANGE, 3, 1, 1)
    brightness = uniform(-COLOUR_CHANGE, COLOUR_CHANGE, 3, 1, 1)
    coloured = (moved - 127) * contrast + 127 + 64 * brightness
    return coloured.clamp_(0, 255).contiguous(memory_format=torch.channels_last)
