"""What a short PruneTrain takes out of ResNet-32, and what that costs; half an hour on two cores."""

import pytest

IN_FEW_EPOCHS = "prunetrain[ratio=0.3,threshold=0.05]"  # in preset quick of prunetrain-table1
pytestmark = [pytest.mark.long, pytest.mark.timeout(4 * 3600)]


def test_a_quarter_of_resnet32_goes_within_three_points_of_dense(quick):
    table = quick(f"dense,{IN_FEW_EPOCHS}", "resnet32", "0,")[1].set_index("method")
    dense, pruned = table.loc["dense"], table.loc["prunetrain"]
    assert pruned["epochs"] <= 12
    assert pruned["inference_flops"] <= 0.75 * dense["inference_flops"]
    assert pruned["test_accuracy"] >= dense["test_accuracy"] - 0.03
