"""DP-GAN-MI: a small adversarial network in the latent space of a public decoder (Chen et al. 2021; "Large-scale public data
improves differentially private image generation quality", algorithm 2): a Wasserstein critic with a gradient penalty, trained
by DP-SGD.

    repeat `steps` times:
        critic:     g = ∇ [D(v') − D(v) + λ ‖∇D(v)‖]  for a record's vector v and a generated v'
                    (`penalty_at` line: λ (‖∇D(u)‖ − 1)² at a u between the two in place of the last term, as in WGAN-GP);
                    clipped as one gradient, summed over a Poisson sample, + noise                          (a paid step)
        generator:  every `critic_steps` critic steps, minimise −D(G(z, y)); keep a moving average           (free)
    sample: x = codec.decode(G(z, y))                                                                       (free)

Private: the records, through the critic's gradients and a noisy count of the classes. Public: codec, Schema, all settings.
"""

from __future__ import annotations

from typing import ClassVar

from sfumato.methods.adversarial import LatentAdversarial
from sfumato.methods.adversarial_losses import Losses, Wasserstein
from sfumato.methods.registry import MethodInfo
from sfumato.methods.settings import setting


class GanMi(LatentAdversarial):
    """DP-GAN-MI for labelled and unlabelled images.

    **Guarantee**: two charges, composed and calibrated jointly: noisy class counts (bound 1), and `steps` Poisson-sampled sums of
    the critic's gradients, each record's (with its generated companion and the penalty) clipped as one to `clip`;
    sums are divided by the expected size of a sample.

    Differs from the paper: labels, for each of which the critic has a number of its own; a generator step after every critic
    step; any codec; a moving average of the generator.
    """

    info = MethodInfo(
        name="gan-mi",
        title="DP-GAN-MI",
        paper="“Large-Scale Public Data Improves Differentially Private Image Generation Quality”, baseline DP-GAN-MI",
        summary="A Wasserstein network in the latent space of a public decoder; its critic has noisy gradients.",
        public="optional",
    )
    TINY: ClassVar = {
        "codec": "dct:16",
        "rate": 0.5,
        "steps": 6,
        "batch": 12,
        "latent": 4,
        "width": 16,  # of 8, records would be taken one at a time
    }

    codec: str = setting(default="dct")
    steps: int = setting(default=1_000)
    critic_steps: int = setting(default=1)
    batch: int = setting("Generated vectors per generator step.", default=256)
    learning_rate: float = setting("Adam's learning rate of generator and critic.", default=3e-3)
    latent: int = setting(default=25)
    width: int = setting("Width of the dense layers; 32 or 128 in the paper.", default=32)
    decay: float = setting(default=0.98)

    @property
    def losses(self) -> Losses:
        return Wasserstein(self.penalty, self.penalty_at)
