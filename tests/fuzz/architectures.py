"""Audit small models of `transformers`, and compare each verdict with what scaling by hand shows.

    python -m tests.fuzz.architectures [NAME ...]     needs `pip install transformers`

The models are built without pretrained weights, small, and in training mode. For up to 100 weights
of a model, drawn at random, the truth is found without a formula of the library: in float64 and
next to no eps, at three places, each unit is multiplied by a factor of its own, and no output may
change. Prints the rows of the table in docs/audit.md; the exit code is 1 if a weight is falsely
invariant, or a model is not audited.
"""

import copy
import random
import resource
import sys
import time
import warnings

import numpy as np
import torch
import transformers
from torch.overrides import TorchFunctionMode

import spherenorm as sn
from tests.audit.by_hand import views_of

WEIGHTS = 100
CHANGE = 1e-9
"""Relative, of the largest entry of an output; more is not rounding."""
TEXT = {
    "vocab_size": 99,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLM = {**TEXT, "num_key_value_heads": 2, "head_dim": 8, "use_cache": False}
IMAGE = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "image_size": 32,
    "patch_size": 8,
}
SPEECH = {
    **{k: v for k, v in TEXT.items() if k not in ("max_position_embeddings",)},
    "conv_dim": (16, 16),
    "conv_kernel": (10, 3),
    "conv_stride": (5, 2),
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 2,
    "num_feat_extract_layers": 2,
    "mask_time_prob": 0.0,
}
EXPERTS = {"num_experts_per_tok": 2, "experts_implementation": "eager"}
STAGES = {"hidden_sizes": [16, 24, 32, 40], "depths": [1, 1, 1, 1]}
CONVNEXT = {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1]}
RESNET = {**STAGES, "embedding_size": 16}
SWIN = {"embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 2, "image_size": 32}
SPEECH_IN = {"input_values": torch.randn(3, 400)}
PAIR = {"vision_config": IMAGE, "text_config": TEXT}


def tokens(shape=(3, 12)):
    return {"input_ids": torch.randint(3, 99, shape)}


def pixels(size=32, count=4):
    return {"pixel_values": torch.randn(count, 3, size, size)}


def both():
    return {**tokens((4, 12)), **pixels()}


def sequences():
    return {**tokens(), "decoder_input_ids": torch.randint(3, 99, (3, 7)), "use_cache": False}


MODELS = {
    "BertForMaskedLM": ({**TEXT}, tokens),
    "RobertaForMaskedLM": ({**TEXT}, tokens),
    "DistilBertForMaskedLM": (
        {"vocab_size": 99, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48},
        tokens,
    ),
    "AlbertForMaskedLM": ({**TEXT, "embedding_size": 16}, tokens),
    "ElectraForPreTraining": ({**TEXT, "embedding_size": 16}, tokens),
    "DebertaV2ForMaskedLM": (
        {**TEXT, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
        tokens,
    ),
    "ModernBertForMaskedLM": ({**TEXT, "cls_token_id": 1, "sep_token_id": 2}, tokens),
    "XLNetLMHeadModel": (
        {"vocab_size": 99, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48},
        tokens,
    ),
    "FNetForMaskedLM": ({**TEXT, "type_vocab_size": 2}, tokens),
    "EsmForMaskedLM": ({**TEXT, "mask_token_id": 3}, tokens),
    "GPT2LMHeadModel": (
        {"vocab_size": 99, "n_embd": 32, "n_layer": 2, "n_head": 4, "use_cache": False},
        tokens,
    ),
    "GPTNeoXForCausalLM": ({**TEXT, "use_cache": False}, tokens),
    "OPTForCausalLM": (
        {**TEXT, "ffn_dim": 48, "word_embed_proj_dim": 32, "use_cache": False},
        tokens,
    ),
    "BloomForCausalLM": (
        {"vocab_size": 99, "hidden_size": 32, "n_layer": 2, "n_head": 4, "use_cache": False},
        tokens,
    ),
    "FalconForCausalLM": ({**TEXT, "use_cache": False}, tokens),
    "LlamaForCausalLM": (LLM, tokens),
    "MistralForCausalLM": (LLM, tokens),
    "MixtralForCausalLM": ({**LLM, **EXPERTS, "num_local_experts": 4}, tokens),
    "Qwen2ForCausalLM": (LLM, tokens),
    "Qwen3ForCausalLM": (LLM, tokens),
    "Gemma2ForCausalLM": (LLM, tokens),
    "Gemma3ForCausalLM": (LLM, tokens),
    "Olmo2ForCausalLM": (LLM, tokens),
    "OlmoeForCausalLM": ({**LLM, **EXPERTS, "num_experts": 4}, tokens),
    "CohereForCausalLM": ({**LLM, "use_qk_norm": True}, tokens),
    "Phi3ForCausalLM": (LLM, tokens),
    "MambaForCausalLM": (
        {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "use_cache": False},
        tokens,
    ),
    "Mamba2ForCausalLM": (
        {
            **{"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "use_cache": False},
            **{"num_heads": 8, "head_dim": 8, "state_size": 8, "n_groups": 1, "chunk_size": 4},
        },
        tokens,
    ),
    "T5ForConditionalGeneration": (
        {"vocab_size": 99, "d_model": 32, "num_layers": 2, "num_heads": 4, "d_ff": 48, "d_kv": 8},
        sequences,
    ),
    "BartForConditionalGeneration": (
        {
            **{"vocab_size": 99, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2},
            **{"encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 48},
            **{"decoder_ffn_dim": 48, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
        },
        sequences,
    ),
    "ViTForImageClassification": (IMAGE, pixels),
    "DeiTForImageClassification": (IMAGE, pixels),
    "BeitForImageClassification": (IMAGE, pixels),
    "Dinov2ForImageClassification": (IMAGE, pixels),
    "SwinForImageClassification": ({**SWIN, "patch_size": 4}, pixels),
    "Swinv2ForImageClassification": ({**SWIN, "patch_size": 4}, pixels),
    "ConvNextForImageClassification": (CONVNEXT, pixels),
    "ConvNextV2ForImageClassification": (CONVNEXT, pixels),
    "PoolFormerForImageClassification": (
        {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1]},
        pixels,
    ),
    "SegformerForImageClassification": (
        {"hidden_sizes": [8, 16, 24, 32], "depths": [1] * 4, "num_attention_heads": [1, 2, 2, 4]},
        lambda: pixels(64),
    ),
    "ResNetForImageClassification": ({**RESNET, "layer_type": "bottleneck"}, pixels),
    "RegNetForImageClassification": ({**RESNET, "groups_width": 8}, pixels),
    "BitForImageClassification": (
        {**RESNET, "hidden_sizes": [32, 64, 64, 64], "num_groups": 8},
        pixels,
    ),
    "MobileNetV1ForImageClassification": ({"depth_multiplier": 0.25}, lambda: pixels(64)),
    "MobileNetV2ForImageClassification": ({"depth_multiplier": 0.25}, lambda: pixels(64)),
    "EfficientNetForImageClassification": (
        {"width_coefficient": 0.25, "depth_coefficient": 0.25, "hidden_dim": 320},
        lambda: pixels(64),
    ),
    "Wav2Vec2ForCTC": (SPEECH, lambda: SPEECH_IN),
    "HubertForCTC": (SPEECH, lambda: SPEECH_IN),
    "WhisperForConditionalGeneration": (
        {
            **{"vocab_size": 99, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2},
            **{"encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 48},
            **{"decoder_ffn_dim": 48, "num_mel_bins": 16, "max_source_positions": 20},
            **{"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "use_cache": False},
            "decoder_start_token_id": 1,
        },
        lambda: {
            "input_features": torch.randn(2, 16, 40),
            "decoder_input_ids": torch.randint(3, 99, (2, 7)),
        },
    ),
    "CLIPModel": (PAIR, both),
    "SiglipModel": (PAIR, both),
    "DetrForObjectDetection": (
        {
            **{"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "num_queries": 5},
            **{"encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 48},
            **{"decoder_ffn_dim": 48, "use_timm_backbone": False, "backbone": None},
            **{"use_pretrained_backbone": False},
            "backbone_config": transformers.ResNetConfig(**RESNET, out_features=["stage4"]),
        },
        lambda: pixels(64, 2),
    ),
}


class InDouble(TorchFunctionMode):
    """Casts to float32 within a model, as most normalizations have, are to float64."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.Tensor.float:
            return args[0].double()
        double = [torch.float64 if x is torch.float32 else x for x in args]
        named = {k: torch.float64 if x is torch.float32 else x for k, x in (kwargs or {}).items()}
        return func(*double, **named)


def build(name):
    kind = getattr(transformers, name)
    torch.manual_seed(0)
    settings, batch = MODELS[name]
    return kind(kind.config_class(**copy.deepcopy(settings))).train(), batch()


def place_of(model, seed):
    """A copy in float64, next to no eps, with all parameters moved unless `seed` is 0."""
    place = copy.deepcopy(model).double()
    for module in place.modules():
        for key, value in vars(module).items():
            if "eps" in key and isinstance(value, float) and value <= 1e-2:
                vars(module)[key] = 1e-30
    generator = torch.Generator().manual_seed(seed)
    for parameter in place.parameters() if seed else ():
        noise = torch.rand(parameter.shape, generator=generator, dtype=torch.float64) - 0.5
        parameter.data += noise * (parameter.data.abs() * 0.4 + 0.1)
    return place


def outputs_of(model, batch):
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    batch = {
        key: x.double() if torch.is_tensor(x) and x.is_floating_point() else x
        for key, x in batch.items()
    }
    buffers = {name: x.clone() for name, x in model.named_buffers()}
    torch.set_default_dtype(torch.float64)
    try:
        with torch.no_grad(), InDouble():
            found = list(flat(model(**batch)))
    finally:
        torch.set_default_dtype(torch.float32)
    for name, x in model.named_buffers():
        x.copy_(buffers[name])
    return found


def flat(value):
    if torch.is_tensor(value):
        if value.is_floating_point():
            yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from flat(item)
    elif isinstance(value, tuple | list):
        for item in value:
            yield from flat(item)


def unchanged(start, place, batch, name, cuts):
    weight = dict(place.named_parameters())[name].data
    before, draw = weight.clone(), random.Random(3)
    for dim, first, last in cuts:
        weight.narrow(dim, first, last - first).mul_(draw.uniform(0.4, 2.5))
    now = outputs_of(place, batch)
    weight.copy_(before)
    pairs = zip(start, now, strict=True)
    return all(float((x - y).abs().max()) <= CHANGE * float(x.abs().max()) for x, y in pairs)


def truth(places, starts, batch, name):
    """The finest view in which scaling changes nothing; None if there is none."""
    shape = dict(places[0].named_parameters())[name].shape
    every = list(views_of(shape))

    def holds(cuts):
        pairs = zip(places, starts, strict=True)
        return all(unchanged(start, place, batch, name, cuts) for place, start in pairs)

    if not holds(every[-1][1]):  # what holds in any view holds for the layer
        return None
    return next(view for view, cuts in every if holds(cuts))


def check(name):
    """The row of a model: its name, and numbers in the order of the table."""
    model, batch = build(name)
    start = time.perf_counter()
    found = {each.name: each for each in sn.audit(model, batch)}
    seconds = time.perf_counter() - start
    names = sorted(found)
    drawn = random.Random(0).sample(names, min(WEIGHTS, len(names)))
    places = [place_of(model, seed) for seed in (1, 2, 0)]
    starts = [outputs_of(place, batch) for place in places]
    false, missed, invariant = [], [], 0
    for each in drawn:
        true, finding = truth(places, starts, batch, each), found[each]
        # An eps that outweighs the variance is none of the truth's, which has no eps.
        unused = str(finding.verdict) == "no evidence"
        silent = unused or "eps outweighs" in finding.reason
        invariant += true is not None and not unused
        if finding.view not in (None, true):
            false.append(f"{each}: {finding.view} instead of {true}")
        elif finding.view != true and not silent:
            missed.append(f"{each}: not {true}; {finding.verdict}, {finding.reason}")
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    return [name, len(found), len(drawn), invariant, len(false), len(missed), seconds, memory], [
        *(f"falsely invariant: {line}" for line in false),
        *(f"missed: {line}" for line in missed),
    ]


def main():
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    wrong = 0
    for name in sys.argv[1:] or MODELS:
        try:
            row, lines = check(name)
        except Exception as error:
            print(f"| {name} | {type(error).__name__}: {str(error)[:150]}", flush=True)
            wrong += 1
            continue
        *counts, seconds, memory = row
        print("|", " | ".join(map(str, counts)), f"| {seconds:.1f} | {memory:.0f} |", flush=True)
        print(*lines, sep="\n", end="\n" if lines else "", flush=True)
        wrong += counts[4]
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
