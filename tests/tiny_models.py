"""Over two dozen kinds of transformers models, tiny and with random weights that attend sharply.

`KINDS` maps a name to a function that makes a model and its inputs: a batch of two, the first one
padded on the left where the model takes an attention mask. `sharpen` scales what makes queries and
keys until rows attend to few keys, since a model that attends everywhere alike hides mistakes.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
import transformers as hf

ROWS = 13
PADDING = 4
LLAMA = {
    "hidden_size": 48,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "vocab_size": 97,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
Made = tuple[Any, dict[str, torch.Tensor]]
KINDS: dict[str, Callable[[], Made]] = {}


def kind(make: Callable[[], Made]) -> Callable[[], Made]:
    KINDS[make.__name__] = make
    return make


def tokens(rows: int = ROWS, padded: bool = True) -> dict[str, torch.Tensor]:
    mask = torch.ones(2, rows, dtype=torch.long)
    if padded:
        mask[0, :PADDING] = 0
    return {"input_ids": torch.randint(3, 97, (2, rows)), "attention_mask": mask}


def pixels(size: int) -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(2, 3, size, size)}


@kind
def llama() -> Made:
    return hf.LlamaModel(hf.LlamaConfig(**LLAMA)), tokens()


@kind
def mistral() -> Made:
    return hf.MistralModel(hf.MistralConfig(**LLAMA, sliding_window=5)), tokens()


@kind
def gemma2() -> Made:
    config = hf.Gemma2Config(**LLAMA, head_dim=8, sliding_window=5, query_pre_attn_scalar=8)
    return hf.Gemma2Model(config), tokens()


@kind
def gemma3() -> Made:
    config = hf.Gemma3TextConfig(
        **LLAMA,
        head_dim=8,
        sliding_window=5,
        layer_types=["sliding_attention", "full_attention"],
        query_pre_attn_scalar=8,
    )
    return hf.Gemma3TextModel(config), tokens()


@kind
def qwen2() -> Made:
    return hf.Qwen2Model(hf.Qwen2Config(**LLAMA)), tokens()


@kind
def qwen3() -> Made:
    return hf.Qwen3Model(hf.Qwen3Config(**LLAMA, head_dim=8)), tokens()


@kind
def gpt_oss() -> Made:
    config = hf.GptOssConfig(
        **LLAMA, head_dim=8, sliding_window=5, num_local_experts=2, num_experts_per_tok=1
    )
    return hf.GptOssModel(config), tokens()


@kind
def t5() -> Made:
    config = hf.T5Config(
        d_model=48, d_kv=8, d_ff=40, num_layers=2, num_heads=6, vocab_size=97, dropout_rate=0.0
    )
    return hf.T5Model(config), encoder_decoder()


def encoder_decoder() -> dict[str, torch.Tensor]:
    inputs = tokens()
    shorter = tokens(7, padded=False)
    return {**inputs, "decoder_input_ids": shorter["input_ids"]}


@kind
def bart() -> Made:
    config = hf.BartConfig(
        d_model=48,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=6,
        decoder_attention_heads=6,
        encoder_ffn_dim=40,
        decoder_ffn_dim=40,
        vocab_size=97,
        max_position_embeddings=40,
    )
    return hf.BartModel(config), encoder_decoder()


BERT = {
    "hidden_size": 48,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
}


@kind
def vit() -> Made:
    return hf.ViTModel(hf.ViTConfig(**BERT, image_size=24, patch_size=8)), pixels(24)


@kind
def whisper() -> Made:
    config = hf.WhisperConfig(
        d_model=48,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=6,
        decoder_attention_heads=6,
        encoder_ffn_dim=40,
        decoder_ffn_dim=40,
        vocab_size=97,
        num_mel_bins=8,
        max_source_positions=15,
        max_target_positions=20,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )
    inputs = {"input_features": torch.randn(2, 8, 30)}
    return hf.WhisperModel(config), {**inputs, "decoder_input_ids": tokens(7)["input_ids"]}


@kind
def bert() -> Made:
    config = hf.BertConfig(**BERT, vocab_size=97, max_position_embeddings=40)
    return hf.BertModel(config), tokens()


@kind
def gpt2() -> Made:
    config = hf.GPT2Config(n_embd=48, n_layer=2, n_head=6, vocab_size=97, n_positions=40)
    return hf.GPT2Model(config), tokens()


MAMBA = {"mamba_n_heads": 4, "mamba_d_state": 8, "mamba_d_conv": 4, "mamba_expand": 2}


@kind
def jamba() -> Made:
    config = hf.JambaConfig(
        **{**LLAMA, "num_hidden_layers": 4},
        attn_layer_period=2,
        attn_layer_offset=1,
        num_experts=2,
        mamba_d_state=8,
        mamba_dt_rank=4,
        use_mamba_kernels=False,
    )
    return hf.JambaModel(config), tokens()


@kind
def modernbert() -> Made:
    config = hf.ModernBertConfig(
        **BERT,
        vocab_size=97,
        local_attention=4,
        global_attn_every_n_layers=2,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        cls_token_id=1,
        sep_token_id=2,
    )
    return hf.ModernBertModel(config), tokens()


@kind
def llama4() -> Made:
    config = hf.Llama4TextConfig(
        **LLAMA,
        intermediate_size_mlp=40,
        head_dim=8,
        attention_chunk_size=5,
        num_local_experts=2,
        use_qk_norm=False,
        layer_types=["chunked_attention", "full_attention"],
    )
    return hf.Llama4TextModel(config), tokens()


@kind
def clip_text() -> Made:
    config = hf.CLIPTextConfig(**BERT, vocab_size=97, max_position_embeddings=20, eos_token_id=2)
    return hf.CLIPTextModel(config), tokens()


@kind
def clip_vision() -> Made:
    config = hf.CLIPVisionConfig(**BERT, image_size=24, patch_size=8)
    return hf.CLIPVisionModel(config), pixels(24)


@kind
def distilbert() -> Made:
    config = hf.DistilBertConfig(
        dim=48, hidden_dim=40, n_layers=2, n_heads=6, vocab_size=97, max_position_embeddings=40
    )
    return hf.DistilBertModel(config), tokens()


@kind
def swin() -> Made:
    config = hf.SwinConfig(
        image_size=32, patch_size=4, embed_dim=24, depths=[2], num_heads=[6], window_size=4
    )
    return hf.SwinModel(config), pixels(32)


@kind
def falcon_h1() -> Made:
    config = hf.FalconH1Config(
        **LLAMA, **MAMBA, head_dim=8, mamba_d_ssm=48, mamba_d_head=12, mamba_n_groups=1
    )
    return hf.FalconH1Model(config), tokens()


@kind
def bamba() -> Made:
    config = hf.BambaConfig(
        **LLAMA, **MAMBA, attn_layer_indices=[1], mamba_d_head=24, mamba_n_groups=1
    )
    return hf.BambaModel(config), tokens()


@kind
def lfm2() -> Made:
    config = hf.Lfm2Config(**LLAMA, layer_types=["conv", "full_attention"])
    return hf.Lfm2Model(config), tokens()


@kind
def qwen3_next() -> Made:
    config = hf.Qwen3NextConfig(
        **LLAMA,
        head_dim=8,
        layer_types=["linear_attention", "full_attention"],
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        num_experts=2,
        num_experts_per_tok=1,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
    )
    return hf.Qwen3NextModel(config), tokens()


@kind
def moonshine() -> Made:
    config = hf.MoonshineConfig(
        hidden_size=48,
        intermediate_size=40,
        encoder_num_hidden_layers=2,
        decoder_num_hidden_layers=2,
        encoder_num_attention_heads=6,
        decoder_num_attention_heads=6,
        encoder_num_key_value_heads=6,
        decoder_num_key_value_heads=6,
        vocab_size=97,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )
    sound = {"input_values": torch.randn(2, 6000)}
    return hf.MoonshineModel(config), {**sound, "decoder_input_ids": tokens(7)["input_ids"]}


@kind
def pixtral() -> Made:
    config = hf.PixtralVisionConfig(**BERT, head_dim=8, image_size=32, patch_size=8)
    return hf.PixtralVisionModel(config), pixels(32)


@kind
def layoutlmv3() -> Made:
    config = hf.LayoutLMv3Config(
        **BERT,
        vocab_size=97,
        max_position_embeddings=40,
        max_2d_position_embeddings=64,
        coordinate_size=8,
        shape_size=8,
        visual_embed=False,
        has_relative_attention_bias=True,
        has_spatial_attention_bias=True,
    )
    inputs = tokens()
    boxes = torch.randint(0, 30, (2, ROWS, 4))
    boxes[..., 2:] += 31
    return hf.LayoutLMv3Model(config), {**inputs, "bbox": boxes}


@kind
def wav2vec2() -> Made:
    config = hf.Wav2Vec2Config(
        **BERT,
        conv_dim=[16, 16],
        conv_stride=[5, 4],
        conv_kernel=[10, 8],
        num_feat_extract_layers=2,
        num_conv_pos_embeddings=4,
        num_conv_pos_embedding_groups=2,
        vocab_size=97,
    )
    sound = torch.randn(2, 600)
    return hf.Wav2Vec2Model(config), {"input_values": sound}


# ------------------------------------------------------------------------------------- sharpness

# What makes queries and keys, by the end of a parameter's name. Joint projections hold the values
# too, which may grow as well.
NORMS = ("q_norm.weight", "k_norm.weight", "q_layernorm.weight", "k_layernorm.weight")
PROJECTIONS = (
    *("q_proj.weight", "k_proj.weight", "query.weight", "key.weight", ".q.weight", ".k.weight"),
    *(
        "q_lin.weight",
        "k_lin.weight",
        "c_attn.weight",
        "Wqkv.weight",
        "qkv.weight",
        "in_proj_weight",
    ),
)


def sharpen(model: Any, entropy: Callable[[], float], keys: int) -> float:
    """Scale until the median row's entropy is under half of log S; return that entropy."""
    named = dict(model.named_parameters())
    norms = [p for name, p in named.items() if name.endswith(NORMS)]
    scaled = norms or [p for name, p in named.items() if name.endswith(PROJECTIONS)]
    assert scaled, "nothing here makes queries and keys"
    for _ in range(14):
        if (found := entropy()) < 0.5 * math.log(keys):
            return found
        with torch.no_grad():
            for parameter in scaled:
                # A norm of Gemma's kind multiplies by 1 + weight.
                parameter.copy_(
                    parameter * 1.6 + (0.6 if norms and parameter.abs().max() < 0.5 else 0)
                )
    raise AssertionError(f"rows stay flat: {found:.2f} of {math.log(keys):.2f}")
