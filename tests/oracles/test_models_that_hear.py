"""Models that hear: their language model is read, where they have one; a decoder that needs a sound is refused."""

from pathlib import Path

import pytest
from architectures import HEARING
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from attncli.checkpoints.options import LoadOptions
from attncli.checkpoints.snapshot import resolve
from attncli.engines.torch.text_model import find_text_model
from attncli.errors import NotExposedError

# A decoder beside an encoder of sounds, or a language model that a sound is mixed into before its first layer.
NEED_A_SOUND = {
    "canary", "cohere_asr", "moonshine", "moonshine_streaming", "speech-encoder-decoder", "speech_to_text", "speecht5",
    "voxtral_realtime", "whisper",
}  # fmt: skip


@pytest.mark.parametrize("name", HEARING)
def test_what_reads_a_sound_is_refused_and_the_others_read_a_text(name: str, tmp_path: Path) -> None:
    config_class = CONFIG_MAPPING[name]
    if name == "speech-encoder-decoder":
        config = config_class.from_encoder_decoder_configs(CONFIG_MAPPING["wav2vec2"](), CONFIG_MAPPING["bert"]())
    else:
        config = config_class()
    config.save_pretrained(tmp_path)
    if name in NEED_A_SOUND:
        with pytest.raises(NotExposedError, match="reads a sound into its text part; give a text model"):
            find_text_model(resolve(str(tmp_path), LoadOptions()), LoadOptions())
    else:
        assert find_text_model(resolve(str(tmp_path), LoadOptions()), LoadOptions()).config is not None
