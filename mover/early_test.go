package mover

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/transport/wire"
)

// stepService has steps, open or sealed, by number, and takes commits.
type stepService struct {
	Service
	open      map[uint64]bool
	committed []uint64
}

// Meta answers requests for steps.
func (s *stepService) Meta(_ context.Context, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	if op := req.GetCommitStep(); op != nil {
		s.committed = append(s.committed, op.GetKey().GetStep())
		return &wire.MetaResponse{}, nil
	}
	step := &wire.Step{Key: req.GetGetStep().GetKey(), State: wire.StepState_STEP_STATE_SEALED}
	if s.open[step.GetKey().GetStep()] {
		step.State = wire.StepState_STEP_STATE_OPEN
	}
	return &wire.MetaResponse{Result: &wire.MetaResponse_Step{Step: &wire.StepReply{Step: step}}}, nil
}

// TestOneCheckWaitsForRanks: while a mover checks a step whose ranks still seal, another such step is
// tried again later, and one that is sealed is checked.
func TestOneCheckWaitsForRanks(t *testing.T) {
	s := &stepService{open: map[uint64]bool{1: true, 2: true}}
	sealed, began := make(chan struct{}), make(chan struct{})
	m, err := New(Config{}, Deps{Service: s, Stripes: struct{ Stripes }{}, CheckStep: func(_ context.Context, key client.StepKey) (ckpt.IndexFile, error) {
		if key.Step == 1 {
			close(began)
			<-sealed
		}
		return ckpt.IndexFile{}, nil
	}})
	require.NoError(t, err)
	check := func(step, ranks uint64) error {
		w := &work{Mover: m, job: &wire.Job{Kind: wire.JobKind_JOB_KIND_COMMIT_STEP, Total: ranks, Step: &wire.StepKey{Step: step}}}
		return w.commitStep(t.Context())
	}
	first := make(chan error)
	go func() { first <- check(1, wire.ManyRanks) }()
	<-began
	require.ErrorIs(t, check(2, wire.ManyRanks), moraine.Unavailable)
	require.NoError(t, check(3, wire.ManyRanks))
	require.NoError(t, check(4, 1))
	close(sealed)
	require.NoError(t, <-first)
	require.NoError(t, check(2, wire.ManyRanks))
	require.Equal(t, []uint64{3, 4, 1, 2}, s.committed)
}
