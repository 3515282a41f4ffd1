"""Small CLIP and SigLIP models with random weights, in folders as `save_pretrained` writes them; and towers in ONNX."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

WORDS = ["a", "cat", "dog", "red", "green", "blue", "square", "circle", "on", "the", "beach"]


def tokenizer(folder: Path, *, mask: bool) -> None:
    """A tokenizer of whole words. Without a mask, texts are padded to one length, as SigLIP's are."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    pieces = ["<pad>", "<start>", "<unk>", *WORDS, "<end>"]  # CLIP takes the vector of the largest id
    made = Tokenizer(models.WordLevel({piece: i for i, piece in enumerate(pieces)}, unk_token="<unk>"))
    made.normalizer = normalizers.Lowercase()
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    ends = [("<start>", 1), ("<end>", len(pieces) - 1)]
    made.post_processor = processors.TemplateProcessing(single="<start> $A <end>", special_tokens=ends)
    PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token="<pad>",
        unk_token="<unk>",
        model_max_length=12,
        model_input_names=["input_ids", "attention_mask"] if mask else ["input_ids"],
    ).save_pretrained(folder)


def clip(folder: Path, seed: int = 0) -> Path:
    """A CLIP of 16 dimensions that resizes the shorter side to 36 pixels and crops 32."""
    import torch
    from transformers import CLIPConfig, CLIPImageProcessorPil, CLIPModel

    text = {"vocab_size": 15, "hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 2}
    text |= {"num_attention_heads": 2, "max_position_embeddings": 12, "eos_token_id": 14, "bos_token_id": 1}
    vision = {"hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    vision |= {"image_size": 32, "patch_size": 8}
    torch.manual_seed(seed)
    CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=16)).save_pretrained(folder)
    CLIPImageProcessorPil(size={"shortest_edge": 36}, crop_size={"height": 32, "width": 32}).save_pretrained(folder)
    tokenizer(folder, mask=True)
    return folder


def siglip(folder: Path) -> Path:
    """A SigLIP of 24 dimensions that stretches pictures to 32 x 32."""
    import torch
    from transformers import SiglipConfig, SiglipImageProcessorPil, SiglipModel

    text = {"vocab_size": 15, "hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 2}
    text |= {"num_attention_heads": 2, "max_position_embeddings": 12, "projection_size": 24}
    vision = {"hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    vision |= {"image_size": 32, "patch_size": 8}
    torch.manual_seed(0)
    SiglipModel(SiglipConfig(text_config=text, vision_config=vision)).save_pretrained(folder)
    SiglipImageProcessorPil(size={"height": 32, "width": 32}).save_pretrained(folder)
    tokenizer(folder, mask=False)
    return folder


def onnx_towers(folder: Path, *, texts: bool = True, pictures: bool = True) -> dict[str, np.ndarray]:
    """Towers that are a table of word vectors, and one matrix for the mean colour. Returns both."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    random = np.random.default_rng(0)
    table = random.standard_normal((15, 6)).astype(np.float32)
    colours = random.standard_normal((3, 6)).astype(np.float32)
    folder.mkdir(parents=True, exist_ok=True)

    def write(name, nodes, given, output, weights):
        kept = [numpy_helper.from_array(value, key) for key, value in weights.items()]
        graph = helper.make_graph(nodes, name, [given], [output], kept)
        opset = [helper.make_opsetid("", 17)]
        onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), folder / f"{name}.onnx")

    if texts:
        tokenizer(folder, mask=False)
        write(
            "text_model",
            [
                helper.make_node("Gather", ["table", "input_ids"], ["words"]),
                helper.make_node("ReduceMean", ["words"], ["text_embeds"], axes=[1], keepdims=0),
            ],
            helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["n", "pieces"]),
            helper.make_tensor_value_info("text_embeds", TensorProto.FLOAT, ["n", 6]),
            {"table": table},
        )
    if pictures:
        settings = {"do_resize": True, "size": {"height": 8, "width": 8}, "resample": 2, "do_normalize": False}
        (folder / "preprocessor_config.json").write_text(json.dumps(settings))
        write(
            "vision_model",
            [
                helper.make_node("ReduceMean", ["pixel_values"], ["mean"], axes=[2, 3], keepdims=0),
                helper.make_node("MatMul", ["mean", "colours"], ["image_embeds"]),
            ],
            helper.make_tensor_value_info("pixel_values", TensorProto.FLOAT, ["n", 3, 8, 8]),
            helper.make_tensor_value_info("image_embeds", TensorProto.FLOAT, ["n", 6]),
            {"colours": colours},
        )
    return {"table": table, "colours": colours}
