package raftstore_test

import (
	"errors"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/morainefs/moraine/metadata/raftstore"
)

// fullPipeline is a pipeline with no room: AppendEntries waits until an answer
// is taken, or the pipeline is closed.
type fullPipeline struct {
	answers chan raft.AppendFuture
	closed  chan struct{}
}

func (p *fullPipeline) AppendEntries(*raft.AppendEntriesRequest, *raft.AppendEntriesResponse) (raft.AppendFuture, error) {
	<-p.closed
	return nil, raft.ErrPipelineShutdown
}
func (p *fullPipeline) Consumer() <-chan raft.AppendFuture { return p.answers }
func (p *fullPipeline) Close() error {
	select {
	case <-p.closed:
	default:
		close(p.closed)
	}
	return nil
}

type answer struct {
	err  error
	resp raft.AppendEntriesResponse
}

func (a answer) Error() error                          { return a.err }
func (a answer) Start() time.Time                      { return time.Time{} }
func (a answer) Request() *raft.AppendEntriesRequest   { return &raft.AppendEntriesRequest{} }
func (a answer) Response() *raft.AppendEntriesResponse { return &a.resp }

// TestPipelineEndsWithItsFirstFailure: a sender that waits for room is released when raft has
// stopped taking answers.
func TestPipelineEndsWithItsFirstFailure(t *testing.T) {
	for name, failure := range map[string]answer{
		"rejected": {},
		"broken":   {err: errors.New("broken")},
	} {
		t.Run(name, func(t *testing.T) {
			defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
			inner := &fullPipeline{answers: make(chan raft.AppendFuture), closed: make(chan struct{})}
			p := raftstore.WrapPipeline(inner)
			inner.answers <- answer{resp: raft.AppendEntriesResponse{Success: true}}
			require.True(t, (<-p.Consumer()).Response().Success)
			select {
			case <-inner.closed:
				t.Fatal("closed after a success")
			default:
			}
			inner.answers <- failure // and nobody takes it from p
			_, err := p.AppendEntries(nil, nil)
			require.ErrorIs(t, err, raft.ErrPipelineShutdown)
			require.NoError(t, p.Close())
		})
	}
}
