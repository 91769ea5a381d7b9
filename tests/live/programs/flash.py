"""Programs that call flash-attn; a stand-in takes its place, and has no gradients."""

from flash_stand_in import flash_attn_forward
from step import HEADS, WIDTH, SelfAttention, evaluation, sentences

SCALE = (WIDTH / HEADS) ** -0.5
REST = (-1, -1, 0.0, None, False)  # no window, no softcap, no slopes


def run(queries=slice(None), is_causal=True):
    def attend(q, k, v):
        q, k, v = (each.transpose(1, 2) for each in (q, k, v))
        return flash_attn_forward(q[:, queries], k, v, 0.0, SCALE, is_causal, *REST)[0].transpose(1, 2)  # <-

    return evaluation(SelfAttention(attend), sentences(batch=2))


# --- right -------------------------------------------------------------------------------------------------


def causal():
    return run()


def cached():
    """Two new words behind eight: flash-attn aligns the last query with the last key."""
    return run(queries=slice(-2, None))


# --- wrong -------------------------------------------------------------------------------------------------


def not_causal():
    return run(is_causal=False)
