"""Programs that call `flex_attention`, without a compiler; on a CPU it has no gradients."""

import warnings

import torch
from step import LENGTHS, REAL, SelfAttention, evaluated, evaluation, main, sentences
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

T = max(LENGTHS)
warnings.filterwarnings("ignore", message=".*flex_attention.*")  # that it was not compiled


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def alibi(score, b, h, q_idx, kv_idx):
    return score - (q_idx - kv_idx) * 2.0 ** -(h + 1)


# --- right -------------------------------------------------------------------------------------------------


@evaluated(batch=2)
def causal_blocks(q, k, v):
    return flex_attention(q, k, v, block_mask=create_block_mask(causal, None, None, T, T, device="cpu"))


@evaluated(batch=2)
def distance_penalty(q, k, v):
    mask = create_block_mask(causal, None, None, T, T, device="cpu")
    return flex_attention(q, k, v, score_mod=alibi, block_mask=mask)


def padding():
    def is_real(b, h, q_idx, kv_idx):
        return REAL[b, kv_idx]

    def attend(q, k, v):
        return flex_attention(q, k, v, block_mask=create_block_mask(is_real, len(LENGTHS), None, T, T, device="cpu"))

    return evaluation(SelfAttention(attend), sentences())


# --- wrong -------------------------------------------------------------------------------------------------


def reversed_comparison():
    def mod(b, h, q_idx, kv_idx):
        return q_idx <= kv_idx

    def attend(q, k, v):
        mask = create_block_mask(mod, None, None, T, T, device="cpu")
        return flex_attention(q, k, v, block_mask=mask)  # <- the mask is the future

    return evaluation(SelfAttention(attend), sentences(batch=2))


def window_off_by_one():
    def mod(b, h, q_idx, kv_idx):
        return (q_idx >= kv_idx) & (q_idx - kv_idx <= 4)

    def attend(q, k, v):
        mask = create_block_mask(mod, None, None, T, T, device="cpu")
        return flex_attention(q, k, v, block_mask=mask)  # <- five keys, not four

    return evaluation(SelfAttention(attend), sentences(batch=2))


if __name__ == "__main__":
    torch.manual_seed(0)
    main(globals())
