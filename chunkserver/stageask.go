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
	// maxAsks is how many files wait to be asked for; more are asked for when
	// they are read again.
	maxAsks = 256
	// askAgain is how long a file that was asked for is not asked for again.
	askAgain = 10 * time.Minute
	// maxAsked is how many files are remembered.
	maxAsked = 16 << 10
)

// stageAsk is a file to be staged, and the object that it was read from.
type stageAsk struct {
	inode  uint64
	object *wire.Object
}

// askedSet remembers when files were asked to be staged.
type askedSet struct {
	mu    sync.Mutex // guards asked
	asked map[uint64]time.Time
}

// first reports whether an inode is to be asked for now, and remembers it.
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

// wantStaged has a file that is read from the bucket staged, once. It never
// waits.
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

// askStages tells the service which files to stage, until ctx ends. What the
// service does not take is asked for again when the file is read again.
func (p *pieces) askStages(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case ask := <-p.asks:
			err := p.askStage(ctx, ask)
			p.deps.Metrics.Stages.WithLabelValues(outcome(err)).Inc()
			if err != nil && ctx.Err() == nil {
				p.deps.Log.Debug("a file that is read from the bucket could not be queued to be staged", "inode", ask.inode, "err", err)
				p.asked.forget(ask.inode)
			}
		}
	}
}

// askStage asks for one file, if its tenant is that of the object that was read.
// The reader named the inode, and the service takes this server's word for it: a
// session that may read an object of its own tenant must not have files of
// another's moved. A clone shares its source's object, so that an inode which the
// record does not name is looked up.
func (p *pieces) askStage(ctx context.Context, ask stageAsk) error {
	if ask.inode != ask.object.Inode {
		resp, err := p.deps.Meta.Do(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_GetAttr{GetAttr: &wire.GetAttr{Inode: ask.inode}}})
		if err != nil {
			return err
		}
		if a := resp.GetEntry().GetAttr(); a.GetTenant() != ask.object.Tenant {
			return &moraine.Error{Op: "chunkserver.GetPiece", Ref: moraine.InodeID(ask.inode).String(), Kind: moraine.PermissionDenied,
				Err: fmt.Errorf("a file of tenant %d was named with an object of tenant %d", a.GetTenant(), ask.object.Tenant)}
		}
	}
	_, err := p.deps.Meta.Do(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_QueueMove{QueueMove: &wire.QueueMove{
		Kind: wire.JobKind_JOB_KIND_STAGE, Inodes: []uint64{ask.inode}}}})
	return err
}
