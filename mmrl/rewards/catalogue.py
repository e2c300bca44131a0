"""Where the built-in rewards live: {name: "module:Class"}. Nothing is imported before a reward is asked for."""

from __future__ import annotations

_PLACES = {
    # boxes
    "mmrl.rewards.rules.boxes": {
        "box_iou": "BoxIoU",
        "box_giou": "BoxGIoU",
        "box_diou": "BoxDIoU",
        "box_ciou": "BoxCIoU",
    },
    "mmrl.rewards.rules.dynamic_iou": {"dynamic_iou": "DynamicIoU", "reachable_iou": "ReachableIoU"},
    "mmrl.rewards.rules.detection": {
        "detection_f1": "DetectionF1",
        "detection_map": "DetectionMAP",
        "od_length": "ODLength",
        "weighted_pr": "WeightedPrecisionRecall",
    },
    "mmrl.rewards.rules.vision_r1": {"vision_r1": "VisionR1"},
    # regions, moments, counts, clicks
    "mmrl.rewards.rules.masks": {"mask_iou": "MaskIoU"},
    "mmrl.rewards.rules.points": {"point_in_box": "PointInBox"},
    "mmrl.rewards.rules.moments": {"temporal_iou": "TemporalIoU", "tube_iou": "TubeIoU"},
    "mmrl.rewards.rules.counting": {"count_exact": "CountExact", "count_graded": "CountGraded"},
    "mmrl.rewards.rules.gui": {"gui_action": "GUIAction"},
    # answers with a value
    "mmrl.rewards.rules.choices": {"multiple_choice": "MultipleChoice"},
    "mmrl.rewards.rules.maths": {"maths": "Maths"},
    "mmrl.rewards.rules.numeric": {"numeric": "Numeric"},
    "mmrl.rewards.rules.mathvista": {"mathvista": "MathVista"},
    "mmrl.rewards.rules.charts": {"chart_relaxed": "ChartRelaxed", "chart_table": "ChartTable"},
    # texts and their form
    "mmrl.rewards.rules.ocr": {"ocr_ned": "OCRNED", "ocr_cer": "OCRCER", "ocr_wer": "OCRWER"},
    "mmrl.rewards.rules.overlap": {"rouge": "Rouge", "bmas": "BMAS"},
    "mmrl.rewards.rules.tables": {"teds": "TEDS"},
    "mmrl.rewards.rules.formats": {"format": "Format"},
    "mmrl.rewards.rules.lengths": {
        "length": "Length",
        "cosine_length": "CosineLength",
        "soft_overlong": "SoftOverlong",
    },
    "mmrl.rewards.rules.repetition": {"repetition": "Repetition"},
    # pictures
    "mmrl.rewards.images.geneval": {"geneval": "GenEval"},
    "mmrl.rewards.images.rendered_text": {"rendered_text": "RenderedText"},
    "mmrl.rewards.images.compressibility": {"compressibility": "Compressibility"},
    "mmrl.rewards.images.similarity": {"ssim": "SSIM", "ms_ssim": "MSSSIM"},
    "mmrl.rewards.images.lpips": {"lpips": "LPIPS"},
    "mmrl.rewards.images.diversity": {"diversity": "Diversity"},
    "mmrl.rewards.images.artefacts": {"artefacts": "Artefacts"},
    # videos
    "mmrl.rewards.videos.consistency": {
        "background_consistency": "BackgroundConsistency",
        "subject_consistency": "SubjectConsistency",
    },
    "mmrl.rewards.videos.flickering": {"temporal_flickering": "TemporalFlickering"},
    # models
    "mmrl.rewards.models.clip_score": {"clip_score": "CLIPScore"},
    "mmrl.rewards.models.siglip_score": {"siglip_score": "SigLIPScore"},
    "mmrl.rewards.models.pickscore": {"pickscore": "PickScore"},
    "mmrl.rewards.models.hps": {"hps_v2": "HPSv2", "hps_v21": "HPSv21"},
    "mmrl.rewards.models.aesthetic": {"aesthetic": "Aesthetic"},
    "mmrl.rewards.models.image_reward": {"image_reward": "ImageReward"},
    "mmrl.rewards.models.vqa_score": {"vqa_score": "VQAScore"},
    "mmrl.rewards.models.goals": {"goal_baseline": "GoalBaseline", "goal_contrast": "GoalContrast"},
    # judges
    "mmrl.rewards.judges.point": {"judge": "Judge"},
    "mmrl.rewards.judges.pairs": {"judge_pairs": "JudgePairs"},
    "mmrl.rewards.judges.checklist": {"judge_checklist": "JudgeChecklist"},
    "mmrl.rewards.judges.ranking": {"judge_ranking": "JudgeRanking"},
}
BUILT_IN = {name: f"{module}:{thing}" for module, rewards in _PLACES.items() for name, thing in rewards.items()}
