package chunkserver

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	// maxAsks is how many stage requests may wait; further files are requested at
	// their next read.
	maxAsks = 256
	// askAgain is how long the server does not repeat the request for a file.
	askAgain = 10 * time.Minute
	// maxAsked is how many files are remembered.
	maxAsked = 16 << 10
)

// stageAsk is a file to stage, and the object that it was read from.
type stageAsk struct {
	inode  uint64
	object *wire.Object
}

// askedSet remembers when staging of a file was requested.
type askedSet struct {
	mu    sync.Mutex // guards asked
	asked map[uint64]time.Time
}

// first reports whether to request an inode now, and remembers it.
func (a *askedSet) first(inode uint64, now time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if at, ok := a.asked[inode]; ok && now.Sub(at) < askAgain {
		return false
	}
	if a.asked == nil || len(a.asked) >= maxAsked {
		a.asked = make(map[uint64]time.Time)
	}
	a.asked[inode] = now
	return true
}

func (a *askedSet) forget(inode uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.asked, inode)
}

// wantStaged requests, once, the staging of a file that is read from the bucket. It
// never waits.
func (p *pieces) wantStaged(inode uint64, from *wire.Object) {
	if inode == 0 || !p.asked.first(inode, p.deps.Clock.Now()) {
		return
	}
	select {
	case p.asks <- stageAsk{inode, from}:
	default:
		p.asked.forget(inode)
	}
}

// askStages sends stage requests until ctx ends. A refused file is requested again
// at its next read.
func (p *pieces) askStages(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case ask := <-p.asks:
			err := p.askStage(ctx, ask)
			p.deps.Metrics.Stages.WithLabelValues(outcome(err)).Inc()
			if err != nil && ctx.Err() == nil {
				p.deps.Log.Debug("stage request failed", "inode", ask.inode, "err", err)
				p.asked.forget(ask.inode)
			}
		}
	}
}

// askStage requests one file, if its tenant is that of the object that was read.
// The reader named the inode, and the metadata service trusts this server's
// request. A session that may read an object of its own tenant must not cause moves
// of another tenant's files. A clone shares its source's object, so askStage looks
// up an inode that the record does not name.
func (p *pieces) askStage(ctx context.Context, ask stageAsk) error {
	if ask.inode != ask.object.Inode {
		resp, err := p.deps.Meta.Do(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_GetAttr{GetAttr: &wire.GetAttr{Inode: ask.inode}}})
		if err != nil {
			return err
		}
		if a := resp.GetEntry().GetAttr(); a.GetTenant() != ask.object.Tenant {
			return &moraine.Error{Op: "chunkserver.GetPiece", Ref: moraine.InodeID(ask.inode).String(), Kind: moraine.PermissionDenied,
				Err: fmt.Errorf("the file belongs to tenant %d, but the object to tenant %d", a.GetTenant(), ask.object.Tenant)}
		}
	}
	_, err := p.deps.Meta.Do(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_QueueMove{QueueMove: &wire.QueueMove{
		Kind: wire.JobKind_JOB_KIND_STAGE, Inodes: []uint64{ask.inode}}}})
	return err
}
