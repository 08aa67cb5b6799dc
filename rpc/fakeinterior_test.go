package rpc

import (
	"context"
	"iter"

	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
)

func (i *fakeInterior) PlanStep(
	_ context.Context, req *quoratev1.PlanStepRequest,
) (*quoratev1.PlanStepResponse, error) {
	return i.step(req)
}

func (i *fakeInterior) ExportSlots(
	_ context.Context, req *quoratev1.ExportSlotsRequest,
) (iter.Seq2[*quoratev1.ExportSlotsResponse, error], error) {
	return i.slots(req)
}

func (i *fakeInterior) ExportPartition(
	_ context.Context, req *quoratev1.ExportPartitionRequest,
) (iter.Seq2[[]byte, error], error) {
	return i.whole(req)
}
