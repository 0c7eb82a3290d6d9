"""Every exercise of the course under its name."""

from __future__ import annotations

from .alignment import check_histogram_distance, check_modulation
from .availability import check_availability
from .averaging import check_weighted_average
from .believing import check_believed
from .candidates import check_power_of_choice
from .checking import Exercise, Result
from .clipping import check_clip_step
from .counting import (
    check_bank_bytes,
    check_bytes_of_asking,
    check_bytes_per_round,
    check_fedfa_bytes,
    check_fedgcr_bytes,
)
from .design import check_comparison
from .divergence import check_cmi
from .frequencies import check_low_frequencies
from .leak import check_local_update
from .leaks import check_frechet, check_printed_score, check_retrieval, check_same_style
from .lookahead import check_meta_step
from .noisy_means import check_noisy_means
from .overlap import (
    check_dice,
    check_released_dice,
    check_shifted_dice,
    check_soft_dice,
)
from .padding import check_client_losses
from .positions import check_wrong_clients
from .prompting import check_steered_tokens
from .relay import check_one_round
from .representing import check_representation
from .resuming import check_cohorts
from .reweighting import check_group_weights
from .rounds import check_dearer_round, check_share_seen, check_shares
from .standing import check_beaten, check_lucky_lead, check_reported
from .styling import (
    check_agreed_style,
    check_partitions,
    check_style_contrast,
    check_taken_style,
)

CHAPTER_00 = (
    Exercise("shares", check_shares),
    Exercise("dearer_round", check_dearer_round),
    Exercise("share_seen", check_share_seen),
    Exercise("one_round", check_one_round),
)
CHAPTER_01 = (
    Exercise("bytes_per_round", check_bytes_per_round),
    Exercise("weighted_average", check_weighted_average),
    Exercise("local_update", check_local_update),
    Exercise("comparison", check_comparison),  # the open task of every chapter
)
CHAPTER_02 = (
    Exercise("bytes_of_asking", check_bytes_of_asking),
    Exercise("availability", check_availability),
    Exercise("power_of_choice", check_power_of_choice),
    Exercise("wrong_clients", check_wrong_clients),
)
CHAPTER_03 = (
    Exercise("bank_bytes", check_bank_bytes),
    Exercise("cmi", check_cmi),
    Exercise("low_frequencies", check_low_frequencies),
    Exercise("meta_step", check_meta_step),
)
CHAPTER_04 = (
    Exercise("modulation", check_modulation),
    Exercise("histogram_distance", check_histogram_distance),
    Exercise("fedfa_bytes", check_fedfa_bytes),
    Exercise("noisy_means", check_noisy_means),
)
CHAPTER_04B = (
    Exercise("dice", check_dice),
    Exercise("shifted_dice", check_shifted_dice),
    Exercise("released_dice", check_released_dice),
    Exercise("soft_dice", check_soft_dice),
)
CHAPTER_05 = (
    Exercise("taken_style", check_taken_style),
    Exercise("partitions", check_partitions),
    Exercise("agreed_style", check_agreed_style),
    Exercise("style_contrast", check_style_contrast),
)
CHAPTER_05B = (
    Exercise("same_style", check_same_style),
    Exercise("retrieval", check_retrieval),
    Exercise("printed_score", check_printed_score),
    Exercise("frechet", check_frechet),
)
CHAPTER_06 = (
    Exercise("steered_tokens", check_steered_tokens),
    Exercise("representation", check_representation),
    Exercise("group_weights", check_group_weights),
    Exercise("fedgcr_bytes", check_fedgcr_bytes),
)
CHAPTER_07 = (
    Exercise("beaten", check_beaten),
    Exercise("lucky_lead", check_lucky_lead),
    Exercise("reported", check_reported),
)
CHAPTER_08 = (
    Exercise("believed", check_believed),
    Exercise("client_losses", check_client_losses),
    Exercise("cohorts", check_cohorts),
    Exercise("clip_step", check_clip_step),
)
EXERCISES = {
    exercise.name: exercise
    for exercise in (
        *CHAPTER_00,
        *CHAPTER_01,
        *CHAPTER_02,
        *CHAPTER_03,
        *CHAPTER_04,
        *CHAPTER_04B,
        *CHAPTER_05,
        *CHAPTER_05B,
        *CHAPTER_06,
        *CHAPTER_07,
        *CHAPTER_08,
    )
}


def check(name: str, answer: object, **given: object) -> Result:
    """Check an answer: `check("weighted_average", weighted_average)`.

    answer: a function or a value; `...` means "not attempted".
    given:  what the answer depends on, for exercises that need it.
    Returns a result that prints as one sentence; it never raises for a wrong answer.
    Raises ValueError for an unknown name.
    """
    if name not in EXERCISES:
        raise ValueError(
            f"unknown exercise {name!r}; there are {', '.join(sorted(EXERCISES))}"
        )
    return EXERCISES[name].grade(answer, **given)
