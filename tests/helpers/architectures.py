"""A tiny random model of every text architecture that the installed transformers knows, of its own config class."""

import inspect
from functools import cache
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoModel, PreTrainedConfig, PreTrainedModel
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

TASKS = (
    "CAUSAL_LM", "MASKED_LM", "MULTIPLE_CHOICE", "NEXT_SENTENCE_PREDICTION", "PRETRAINING", "QUESTION_ANSWERING",
    "SEQUENCE_CLASSIFICATION", "SEQ_TO_SEQ_CAUSAL_LM", "TEXT_ENCODING", "TOKEN_CLASSIFICATION",
)  # fmt: skip

OTHER_SENSES = ("audio", "image", "protein", "tokenizer_encoder", "vision", "vq_config")
"""A sub-config with one of these in its name says that the model reads more than text."""

OTHER_INPUTS = ("audio_token_index", "conv_stride", "image_size", "num_frames", "num_mel_bins")
"""A config with one of these attributes does so as well, even if it has no sub-config for it."""

IMAGE_TEXT = modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
"""The models that read pictures beside text, by their model types."""

TEXT_CLASSES = {"seamless_m4t": "SeamlessM4TForTextToText", "seamless_m4t_v2": "SeamlessM4Tv2ForTextToText"}
"""What reads text in a model that speaks and hears too."""

# How small that part is with which they look at the pictures, which is saved and not run here.
SEEING: dict[str, Any] = {"image_size": 32, "patch_size": 16, "depth": 1, "embed_dim": 32, "mlp_ratio": 2}

WITHOUT_ATTENTION = {
    "falcon_mamba": "state spaces", "fnet": "Fourier transforms", "mamba": "state spaces", "mamba2": "state spaces",
    "rwkv": "time mixing", "xlstm": "matrix memories",
}  # fmt: skip

NOT_BUILT = {
    "bros": "needs the boxes of its words beside them", "layoutlmv2": "needs detectron2",
    "lxmert": "needs the features of an image", "t5gemma2": "its encoder reads images",
}  # fmt: skip

LAYERS = (
    "num_hidden_layers n_layer n_layers num_layers encoder_layers decoder_layers num_encoder_layers num_decoder_layers "
    "speech_encoder_layers t2u_encoder_layers t2u_decoder_layers"
).split()

SIZES: dict[int, str] = {
    1: "n_group topk_group first_k_dense_replace num_dense_layers max_window_layers mamba_n_groups n_groups "
    "mamba_num_heads mamba_n_heads n_mamba_heads",
    2: "index_block_size index_topk_blocks num_key_value_heads num_kv_heads n_head_kv num_experts_per_tok "
    "num_experts_per_token moe_topk top_k moe_k swa_num_key_value_heads kv_n_heads moe_top_k",
    3: "sliding_window sliding_window_size attention_window_size window_size",
    4: "attention_chunk_size index_topk keep_window_size num_attention_heads n_head n_heads num_heads "
    "encoder_attention_heads decoder_attention_heads attention_heads num_encoder_attention_heads "
    "num_decoder_attention_heads num_experts n_routed_experts num_local_experts moe_num_experts index_n_heads "
    "linear_num_key_heads linear_num_value_heads linear_num_heads swa_num_attention_heads attention_window "
    "local_attention speech_encoder_attention_heads t2u_encoder_attention_heads t2u_decoder_attention_heads",
    8: "head_dim d_kv d_head attention_head_size kv_channels dim_head qk_nope_head_dim qk_rope_head_dim v_head_dim "
    "linear_key_head_dim linear_value_head_dim linear_head_dim mamba_d_state index_head_dim state_size "
    "ssm_state_size swa_head_dim hidden_size_per_layer_input rotary_dim hc_lowrank query_pre_attn_scalar",
    16: "q_lora_rank kv_lora_rank o_lora_rank mamba_dt_rank time_step_rank entity_emb_size pronunciation_embed_dim "
    "shape_embed_dim unit_embed_dim lang_embed_dim spkr_embed_dim t2u_variance_predictor_embed_dim "
    "t2u_variance_predictor_hidden_dim",
    32: "hidden_size d_model n_embd dim emb_dim embedding_size hidden_size_global router_hidden_size lru_width",
    48: "intermediate_size ffn_dim d_ff n_inner encoder_ffn_dim decoder_ffn_dim d_inner ffn_hidden_size hidden_dim "
    "moe_intermediate_size shared_expert_intermediate_size intermediate_size_mlp dim_ff dff feed_forward_size "
    "expert_ffn_hidden_size shared_intermediate_size dense_intermediate_size moe_shared_expert_intermediate_size "
    "speech_encoder_intermediate_size t2u_encoder_ffn_dim t2u_decoder_ffn_dim",
    64: "max_position_embeddings n_positions max_seq_len max_encoder_position_embeddings "
    "max_decoder_position_embeddings mamba_d_head mamba_head_dim mamba_d_ssm",
    128: "vocab_size src_vocab_size tgt_vocab_size decoder_vocab_size vocab_size_per_layer_input entity_vocab_size "
    "shape_vocab_size pronunciation_vocab_size num_hash_buckets t2u_vocab_size char_vocab_size "
    "unit_hifi_gan_vocab_size upsample_initial_channel encoder_hash_byte_group_vocab",
}

# `initializer_range` and its like: at the usual 0.02, so small a model attends to everything alike.
SMALL: dict[str, Any] = {name: size for size, names in SIZES.items() for name in names.split()} | {
    "use_sliding_window": True, "initializer_range": 0.4, "init_std": 0.4, "initializer_factor": 1.0,
}  # fmt: skip

PER_LAYER = (
    "attn_layers", "attention_types", "block_sizes", "indexer_types", "layer_types", "layers_block_type",
    "mlp_layer_types", "no_rope_layers",
)  # fmt: skip
"""Lists with an entry for each layer. A few layers, even two, hold each kind of the default's many, in turn."""

WINDOWS = {"sliding_window": 3, "layer_types": ["full_attention", "sliding_attention"]}
"""For those that know sliding windows but have them in no layer by default."""

SECTIONS = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}}
"""Rotary positions of time, height and width, for heads of eight dimensions."""

WHOLE_SECTIONS = {"rope_parameters": SECTIONS["rope_parameters"] | {"partial_rotary_factor": 1.0}}
"""The same for models that rotate a half of each head where nothing else is said."""

# What the tables above cannot say: values that only fit one architecture, or that its defaults leave out.
MORE: dict[str, dict[str, Any]] = {
    "albert": {"initializer_range": 0.2}, "mt5": {"initializer_factor": 0.7},
    **dict.fromkeys(("laguna", "mellum", "qwen2", "qwen2_moe", "qwen3"), WINDOWS), "qwen3_moe": {"sliding_window": 3},
    "bailing_hybrid": {"head_dim": 8}, "bamba": {"attn_layer_indices": [1]}, "blt": {"use_cache": False},
    "cohere_compass_text": WINDOWS | {"rope_parameters": {kind: {"rope_type": "default", "rope_theta": 10000.0,
        "mrope_section": [2, 1, 1]} for kind in ("full_attention", "sliding_attention")}},
    "dbrx": {"attn_config": {"clip_qkv": 8.0, "kv_n_heads": 2, "rope_theta": 10000.0}},
    # More blocks than a query may see, of two tokens and of three.
    "deepseek_v4": {"compress_rates": {"compressed_sparse_attention": 2, "heavily_compressed_attention": 3},
        "layer_types": ["compressed_sparse_attention", "heavily_compressed_attention", "sliding_attention"],
        "index_topk": 2},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "dots1": WINDOWS | {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "dots3_note_text": {"num_key_value_heads": 4, "head_dim": 16, "swa_num_attention_heads": 4,
        "swa_num_key_value_heads": 4, "swa_q_lora_rank": 16, "swa_kv_lora_rank": 16, "swa_head_dim": 16,
        "swa_qk_nope_head_dim": 8, "swa_v_head_dim": 8},
    "esm": {"vocab_size": 128, "pad_token_id": 1, "mask_token_id": 2, "position_embedding_type": "rotary"},
    "esmc": {"num_key_value_heads": 4},
    "gemma3n_text": {"intermediate_size": 48, "num_kv_shared_layers": 0, "activation_sparsity_pattern": None},
    "gemma4_text": {"global_head_dim": 8}, "gemma4_unified_text": {"global_head_dim": 8},
    "gpt_neo": {"attention_types": [[["global"], 1], [["local"], 1]]},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"]},
    "hrm_text": {"H_cycles": 1, "L_cycles": 2}, "hunyuan_v1_dense": {"head_dim": 8},
    "hunyuan_v1_moe": {"head_dim": 8, "num_experts": 4, "moe_topk": 2},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "layoutlmv3": {"coordinate_size": 6, "shape_size": 4, "visual_embed": False},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]}, "lilt": {"hidden_size": 48, "pad_token_id": 1},
    "longcat_flash": {"head_dim": 8, "zero_expert_num": 2}, "mamba2": {"head_dim": 16},
    "markuplm": {"xpath_unit_hidden_size": 4, "max_depth": 2}, "ministral": {"head_dim": 8},
    "funnel": {"architectures": ["FunnelModel"], "block_sizes": [1]},
    "minimax_m3_vl_text": {"layer_types": ["full_attention", "minimax_m3_sparse"], "index_n_heads": 2},
    "nemotron": {"num_key_value_heads": 2},
    "nemotron_h": {"layers_block_type": ["linear_attention", "full_attention", "moe", "mlp"]},
    # Its long window is 1024, whatever one says.
    "neomme": {"head_dim": 16, "per_layer_config": {1: {"sliding_window": None}, 2: {"sliding_window": 4}}},
    "qwen4_exp_text": {"indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 8, "indexer_budget": 4,
        "indexer_compress_ratio": 2},
    "recurrent_gemma": {"block_types": ["recurrent", "attention"]},
    "reformer": {"axial_pos_shape": [8, 8], "axial_pos_embds_dim": [16, 16]}, "xmod": {"default_language": "en_XX"},
    # Parts of models that read pictures beside text.
    "chameleon_vqgan": {"base_channels": 32, "embed_dim": 32, "latent_channels": 32, "channel_multiplier": [1, 1]},
    "emu3_vqgan": {"base_channels": 32, "channel_multiplier": [1, 1], "num_res_blocks": 1},
    "chameleon": {"vocabulary_map": {"<image>": 8}}, "emu3": {"vocabulary_map": {"<image>": 8, "<|extra_200|>": 9}},
    "cohere_compass_vision": {"out_hidden_size": 32}, "cosmos3_edge": {"projector_hidden_size": 32},
    "cosmos3_edge_text": SECTIONS,
    "deepseek_ocr2_text": {"num_experts_per_tok": 2, "mlp_layer_types": ["dense", "sparse", "sparse"]},
    "dots3_note_audio_encoder": {"adapter_input_size": 32, "adapter_out_dim": 32},
    "dots3_note_vision_encoder": {"adapter_in_dim": 32, "adapter_out_dim": 32},
    "ernie4_5_vl_moe_text": {"moe_intermediate_size": [48, 48],
        "rope_parameters": SECTIONS["rope_parameters"] | {"mrope_section": [1, 1, 2]}},
    "exaone4": {"model_type": "exaone4"},
    "florence_vision": {"depths": (1, 1, 1, 1), "embed_dim": (8, 16, 32, 32), "num_heads": (2, 2, 4, 4),
        "num_groups": (2, 2, 4, 4), "patch_size": (7, 3, 3, 3), "projection_dim": 32},
    "glm4v_vision": {"out_hidden_size": 32}, "glm4v_moe_vision": {"out_hidden_size": 32},
    "glm_ocr_vision": {"out_hidden_size": 32},
    "glm5_next_vision": {"out_hidden_size": 32, "projection_intermediate_size": 32},
    "glm5_next_text": {"index_kpool": 2, "qk_rope_head_dim": 0, "layer_types": ["linear_attention",
        "indexed_attention"]},
    "glm4v_text": WHOLE_SECTIONS, "glm4v_moe_text": WHOLE_SECTIONS, "glm_ocr_text": WHOLE_SECTIONS,
    "clip_vision_model": {"hidden_size": 64},
    "granite4_vision": {"downsample_rate": "4/8", "deepstack_layer_map": [[0, 0]], "spatial_target_layers": [1],
        "vision_feature_layer": -1},
    "granite_docling_vision": {"out_hidden_size": 32, "deepstack_visual_indexes": [0]},
    "hunyuan_vl_text": SECTIONS | {"head_dim": 8}, "inkling2_vision": {"text_hidden_size": 32},
    "janus_vqgan": {"base_channels": 32, "channel_multiplier": [1, 1], "projection_dim": 32},
    "kosmos_2_text_model": {"embed_dim": 32, "layers": 3, "attention_heads": 4, "ffn_dim": 48},
    "kosmos_2_5_text_model": {"embed_dim": 32, "layers": 3, "attention_heads": 4, "ffn_dim": 48},
    "llama4_vision_model": {"vision_output_dim": 32, "projector_input_dim": 32, "projector_output_dim": 32},
    "molmo2_adapter": {"vision_feature_layer": [0], "text_hidden_size": 32},
    "molmo2_text": {"rope_scaling_layers": [0, 1, 2]}, "muse_glimmer": {"projector_hidden_size": 32},
    "muse_spark": {"out_hidden_size": 32, "projector_hidden_size": 32}, "muse_spark_text": {"moe_hidden_size": 32},
    "muse_spark_audio": {"num_hidden_layers": 4, "hidden_sizes": (8, 16, 16, 32), "depths": (1, 1, 1, 1),
        "out_hidden_size": 32},
    "nemotron_h_omni": {"projector_hidden_size": 32}, "paddleocr_vl_text": SECTIONS,
    "qwen2_5_omni_text": SECTIONS | WINDOWS, "qwen2_5_omni_thinker": {"vision_start_token_id": 5},
    "qwen3_omni_moe_thinker": {"vision_start_token_id": 5}, "mllama_text_model": {"cross_attention_layers": [1]},
    "mistral": {"sliding_window": 3},
    "step3p5": WINDOWS | {"rope_parameters": {kind: {"rope_type": "default",
        "rope_theta": 10000.0} for kind in ("full_attention", "sliding_attention")}},
    "unlimited_ocr_text": {"num_key_value_heads": 4}, "qwen2_5_vl_text": SECTIONS | WINDOWS,
    "qwen2_vl_text": SECTIONS | WINDOWS, "qwen3_vl_vision": {"out_hidden_size": 32},
    "radio": {"video_temporal_patch_size": 2},
    "zamba": {"layers_block_type": ["hybrid", "hybrid", "linear_attention"]}, "zaya": {"num_experts_per_tok": 1},
}  # fmt: skip


@cache
def architectures() -> list[str]:
    """The model types that read text and have attention, those of `NOT_BUILT` left out."""
    tasks = (getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES") for task in TASKS)
    names = {name for task in tasks for name in task}
    names -= WITHOUT_ATTENTION.keys() | NOT_BUILT.keys()
    return sorted(
        name for name in names & modeling_auto.MODEL_MAPPING_NAMES.keys() if _reads_text(CONFIG_MAPPING[name])
    )


def each(*left_out: str) -> list[Any]:
    """The architectures as parameters of a test; all tests of one run in one process, which imports its code once."""
    return [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in architectures() if name not in left_out]


def _reads_text(config_class: type[PreTrainedConfig]) -> bool:
    subs = any(sense in sub for sense in OTHER_SENSES for sub in config_class.sub_configs)
    return not subs and not any(hasattr(config_class, name) for name in OTHER_INPUTS)


def tiny_config(name: str, layers: int = 3) -> PreTrainedConfig:
    """The architecture's own defaults, with everything that makes a model large made small."""
    config_class = CONFIG_MAPPING[name]
    more = MORE.get(name, {})
    small = _small(config_class(), layers) | more
    small |= {key: (more[key] * layers)[:layers] for key in PER_LAYER if key in more}
    return config_class(**small)


def _small(config: PreTrainedConfig, layers: int) -> dict[str, Any]:
    names = inspect.signature(type(config).__init__).parameters
    own = {name: vars(config).get(config.attribute_map.get(name, name)) for name in names}
    own = {name: value for name, value in own.items() if value is not None}
    small = {name: size for name, size in SMALL.items() if name in own}
    small |= {name: layers for name in LAYERS if name in own}
    if "kv_lora_rank" in own:
        # Every head's keys and values come out of one small vector: there are no groups.
        small["num_key_value_heads"] = SMALL["num_attention_heads"]
    for name, value in own.items():
        if isinstance(value, PreTrainedConfig):
            small[name] = _nested(name, value, layers)
        elif name.endswith("token_id") and isinstance(value, int) and value >= SMALL["vocab_size"]:
            small[name] = 1
        elif name in PER_LAYER:
            kinds = [kind for index, kind in enumerate(value) if kind not in value[:index]]
            small[name] = (kinds * layers)[:layers]
    return small


def _nested(name: str, config: PreTrainedConfig, layers: int) -> dict[str, Any]:
    """What is small of one part of a model: what it looks and hears with needs no depth."""
    own = MORE.get(config.model_type, {})
    own = own | {key: (own[key] * layers)[:layers] for key in PER_LAYER if key in own}
    if not any(sense in name for sense in OTHER_SENSES):
        return _small(config, layers) | own
    numbers = {key: type(value) for key in SEEING if isinstance(value := getattr(config, key, None), int | float)}
    return _small(config, 1) | {key: type_(SEEING[key]) for key, type_ in numbers.items()} | own


def tiny_model(name: str, layers: int = 3, attn_implementation: str = "eager") -> PreTrainedModel:
    """The same weights at every call: random, and large enough that attention is far from uniform."""
    return random_model(AutoModel.from_config, tiny_config(name, layers), attn_implementation)


def tiny_text_part(name: str, attn_implementation: str) -> PreTrainedModel:
    if name not in TEXT_CLASSES:
        return tiny_model(name, attn_implementation=attn_implementation)
    build = getattr(transformers, TEXT_CLASSES[name])._from_config
    return random_model(build, tiny_config(name), attn_implementation)


def tiny_whole(name: str, layers: int = 3) -> PreTrainedModel:
    return random_model(whole_class(name)._from_config, tiny_config(name, layers))


def whole_class(name: str) -> type[PreTrainedModel]:
    special = {"shieldgemma2": "ShieldGemma2ForImageClassification"}  # its checkpoints are of this class
    return getattr(transformers, special.get(name, IMAGE_TEXT[name]))


def random_model(build: Any, config: PreTrainedConfig, attn_implementation: str = "eager") -> PreTrainedModel:
    torch.manual_seed(0)
    model = build(config, attn_implementation=attn_implementation, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            # Biases start at nought and norms at one: what is done with them would not be seen.
            if parameter.numel() and parameter.var(correction=0) < 0.02:
                parameter += 0.4 * torch.randn_like(parameter)
    return model


def tiny_inputs(config: PreTrainedConfig) -> dict[str, torch.Tensor]:
    ids = torch.tensor([[23, 42, 17, 88, 23, 64, 31]])
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if config.is_encoder_decoder:
        inputs["decoder_input_ids"] = ids[:, 1:6] + 1
    return inputs
