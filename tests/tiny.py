"""Small models with random weights, sharp enough that attention is no mean; built once."""

from functools import cache

import numpy as np
import torch
import transformers

_SHARP = ("q_proj", "k_proj", "c_attn", "query", "key", ".q.", ".k.")


@cache
def tiny(name, sharp=None, **options):
    """A model by the name of its class, in eval mode; sizes are distinct on purpose."""
    sharp = sharp or (2.0 if name.startswith("T5") else 6.0)  # T5 does not scale its scores
    torch.manual_seed(0)
    kind = getattr(transformers, name)
    model = kind(kind.config_class(**_CONFIGS[name] | options)).eval()
    for path, weights in model.named_parameters():
        if weights.ndim == 2 and any(part in path for part in _SHARP):
            weights.data *= sharp
    return model


_DECODER = {
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "hidden_size": 48,
    "head_dim": 8,
    "intermediate_size": 40,
    "vocab_size": 53,
    "bos_token_id": 1,
    "eos_token_id": 52,
    "pad_token_id": 0,
}
_ENCODER_DECODER = {"vocab_size": 53, "d_model": 24, "decoder_start_token_id": 2}
_CONFIGS = {
    "GPT2LMHeadModel": {
        "n_layer": 2, "n_head": 2, "n_embd": 16, "vocab_size": 53, "n_positions": 64,
        "bos_token_id": 1, "eos_token_id": 52,
    },
    "BertModel": {
        "num_hidden_layers": 2, "num_attention_heads": 3, "hidden_size": 24, "vocab_size": 53,
        "intermediate_size": 20, "max_position_embeddings": 64,
    },
    "LlamaForCausalLM": _DECODER,
    "MistralForCausalLM": _DECODER | {"sliding_window": 3},
    "Gemma2ForCausalLM": _DECODER | {"sliding_window": 3},
    "GptOssForCausalLM": _DECODER
    | {"sliding_window": 3, "num_local_experts": 2, "num_experts_per_tok": 1},
    "BartForConditionalGeneration": _ENCODER_DECODER
    | {
        "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2,
        "decoder_attention_heads": 3, "encoder_ffn_dim": 20, "decoder_ffn_dim": 20,
        "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 52, "forced_eos_token_id": None,
    },
    "T5ForConditionalGeneration": _ENCODER_DECODER
    | {"num_layers": 2, "num_heads": 3, "d_kv": 8, "d_ff": 20, "decoder_start_token_id": 0},
    "ViTModel": {
        "num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 16,
        "intermediate_size": 20, "image_size": 24, "patch_size": 8,
    },
    "DebertaV2Model": {
        "num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 16, "vocab_size": 53,
        "intermediate_size": 20,
    },
    "JambaForCausalLM": _DECODER
    | {
        "num_hidden_layers": 4, "attn_layer_period": 2, "attn_layer_offset": 1,
        "num_experts": 2, "use_mamba_kernels": False, "mamba_d_state": 4, "mamba_dt_rank": 4,
    },
}  # fmt: skip


def ids(items=1, length=7):
    """(items, length) token ids, none of them special."""
    return torch.from_numpy(np.random.default_rng(3).integers(5, 50, (items, length)))


def padded(side, lengths=(11, 7, 4)):
    """Ids and attention mask of items of these lengths, padded on one side."""
    most = max(lengths)
    mask = torch.zeros(len(lengths), most, dtype=torch.long)
    for row, length in zip(mask, lengths, strict=True):
        row[most - length :] = 1 if side == "left" else row[most - length :]
        row[:length] = 1 if side == "right" else row[:length]
    return {"input_ids": ids(len(lengths), most), "attention_mask": mask}


_KINDS = {
    "attentions": None,
    "encoder_attentions": "encoder",
    "decoder_attentions": "decoder",
    "cross_attentions": "cross",
}


def eager(model, **inputs):
    """The weights of the model's own eager attention, by kind (None: it has one kind)."""
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        with torch.no_grad():
            given = model(**inputs, output_attentions=True)
    finally:
        model.set_attn_implementation(before)
    found = {kind: getattr(given, name, None) for name, kind in _KINDS.items()}
    return {
        kind: [layer.float().numpy() for layer in layers]
        for kind, layers in found.items()
        if layers
    }


def worst(seen, expected):
    """The largest difference of a recording's weights from expected ones, padding aside."""
    found = 0.0
    for kind, weights in expected.items():
        layers = [layer for layer in seen.layers if kind in (None, layer.kind)]
        assert len(layers) == len(weights)
        for layer, given in zip(layers, weights, strict=True):
            apart = np.abs(layer.weights[...] - given)
            if layer.real_rows is not None:
                apart = apart[np.broadcast_to(layer.real_rows[:, None, :, None], apart.shape)]
            found = max(found, float(apart.max()))
    return found
