package histories_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/integration/incluster"
	"github.com/morainefs/moraine/transport/wire"
)

// service is the metadata service as one client sees it.
type service interface {
	Meta(ctx context.Context, req *wire.MetaRequest) (*wire.MetaResponse, error)
}

// history is the requests and answers of clients, arena by arena. Its clock counts
// events: an answer before a request has the lower number.
type history struct {
	clock  atomic.Int64
	arenas []*playground

	mu     sync.Mutex
	grants map[uint64]int // stripe numbers, by the client that got them
	twice  []uint64       // numbers given to two clients
}

// playground is an arena of the history.
type playground struct {
	dirs  [dirsOfArena]uint64
	paths [dirsOfArena]string
	tree  uint64 // the source of clones of trees

	mu  sync.Mutex
	ops []porcupine.Operation
	ids []known
}

// known is an inode whose number a client has received.
type known struct {
	id   uint64
	file bool // a regular one
	dir  bool
}

// never is the time of an answer that did not arrive.
const never = int64(1) << 60

func (p *playground) record(client int, in input, out output, call, end int64) {
	if out.unknown {
		end = never
		switch in.verb {
		case lookup, stat, readdir, getxattr, extents:
			return
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ops = append(p.ops, porcupine.Operation{ClientId: client, Input: in, Output: out, Call: call, Return: end})
	for _, o := range append(out.entries, out) {
		// Operations by number use only the children of the arena's own
		// directories: the contents of a directory that is removed with it die a
		// while later.
		if o.id != 0 && in.in == 0 && in.verb != unlink && in.verb != rmdir {
			p.know(known{o.id, !o.dir && o.target == "", o.dir})
		}
	}
}

// recent is how many inodes operations by number choose from.
const recent = 8

func (p *playground) know(k known) {
	for _, o := range p.ids {
		if o == k {
			return
		}
	}
	p.ids = append(p.ids, k)
	if len(p.ids) > recent {
		p.ids = p.ids[1:]
	}
}

// inode picks a known one; only of a file, if file is set.
func (p *playground) inode(rng *rand.Rand, file bool) (uint64, bool) {
	return p.pick(rng, func(k known) bool { return k.file || !file })
}

// directory picks a known one.
func (p *playground) directory(rng *rand.Rand) (uint64, bool) {
	return p.pick(rng, func(k known) bool { return k.dir })
}

func (p *playground) pick(rng *rand.Rand, fits func(known) bool) (uint64, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for range 8 {
		if len(p.ids) == 0 {
			break
		}
		if k := p.ids[rng.IntN(len(p.ids))]; fits(k) {
			return k.id, true
		}
	}
	return 0, false
}

// worker is one client.
type worker struct {
	h       *history
	id      int
	rng     *rand.Rand
	meta    service
	cache   *client.Client // meta, if it has a cache
	jobs    *client.Client // waits for jobs
	close   func() error
	nap     *incluster.Nap // of its process; nil: it never sleeps
	looks   bool           // read-only
	calm    bool           // no faults: no session ends
	devices []uint32
	stripes []uint64 // granted and not used
	drafts  []draft  // files without a name
	done    int
	unknown int
}

// longestPause is the longest pause of a worker between two operations.
const longestPause = 60 * time.Millisecond

// run works until ctx ends.
func (w *worker) run(ctx context.Context) {
	for ctx.Err() == nil {
		w.do(w.h.arenas[w.rng.IntN(len(w.h.arenas))])
		select {
		case <-time.After(time.Duration(w.rng.Int64N(int64(longestPause)))):
		case <-ctx.Done():
		}
	}
}

// do performs one random operation.
func (w *worker) do(p *playground) {
	in, ok := w.choose(p)
	if !ok {
		return
	}
	// Some time out early, which leaves an unknown outcome.
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(50+w.rng.IntN(2500))*time.Millisecond)
	defer cancel()
	if (in.verb == save || in.verb == concat) && !w.draft(ctx, p, &in) {
		return
	}
	if (in.verb == commit || in.verb == save && in.source == 0) && !w.grant(ctx, &in) {
		return
	}
	out := w.ask(ctx, p, in)
	if (in.verb == save || in.verb == concat) && (out.err == exists || out.err == isDir) {
		w.drafts = append(w.drafts, draft{in.id, in.mode}) // unchanged
	}
}

// ask performs an operation and records it.
func (w *worker) ask(ctx context.Context, p *playground, in input) output {
	if w.nap != nil {
		w.nap.Sleep()
	}
	in.by, in.calm = w.id, w.calm
	call := w.h.clock.Add(1)
	resp, err := w.serve(ctx, p, in)
	if in.verb == cloneTree && err == nil {
		err = w.cloned(ctx, resp)
	}
	end := w.h.clock.Add(1)
	out := answer(in, resp, err)
	if moraine.KindOf(err) == moraine.SessionExpired {
		w.stripes, w.drafts = nil, nil
	}
	if out.unknown {
		w.unknown++
	}
	w.done++
	p.record(w.id, in, out, call, end)
	return out
}

// choose draws an operation.
func (w *worker) choose(p *playground) (in input, ok bool) {
	rng := w.rng
	in = input{verb: verb(rng.IntN(int(verbs))), byPath: rng.IntN(2) == 0, slot: rng.IntN(slots), to: rng.IntN(slots), dir: rng.IntN(dirsOfArena), mode: uint32(0o600 + rng.IntN(0o100))}
	switch {
	case w.looks:
		in.verb = []verb{lookup, lookup, stat, stat, readdir, getxattr}[rng.IntN(6)]
	case rng.IntN(4) == 0:
		in.verb = create // most others need files
	case rng.IntN(3) == 0:
		in.verb = []verb{mkdir, mkdir, mkdir, rmdir, rmdir, rmdir, rmdir, rmdir, rmdir, rmtree, link, link, save, symlink, concat, cloneTree, rename}[rng.IntN(17)] // those that seldom succeed
	}
	w.inside(p, &in)
	in.keep = in.in == 0 && in.toIn == 0 && (in.verb == unlink || in.verb == rename || in.verb == save) && rng.IntN(2) == 0
	switch in.verb {
	case create, mkdir:
		in.exclusive = rng.IntN(2) == 0
	case symlink:
		in.value = fmt.Sprint("t", rng.IntN(1000))
	case rename:
		in.noReplace = rng.IntN(4) == 0
		in.exchange = !in.noReplace && (in.in == 0) == (in.toIn == 0) && rng.IntN(4) == 0
	case chown:
		in.owner = owner{uint32(rng.IntN(4)), uint32(rng.IntN(4))}
		in.owns = []wire.SetAttrField{wire.SetAttrField_SET_ATTR_UID, wire.SetAttrField_SET_ATTR_GID, wire.SetAttrField_SET_ATTR_UID | wire.SetAttrField_SET_ATTR_GID}[rng.IntN(3)]
		in.id, ok = p.inode(rng, false)
		return in, ok
	case stat, chmod:
		in.id, ok = p.inode(rng, false)
		return in, ok
	case link:
		in.id, ok = p.inode(rng, false)
		return in, ok
	case setxattr, getxattr:
		in.value = fmt.Sprint(rng.IntN(1000))
		in.create, in.replace, in.remove = rng.IntN(4) == 0, false, rng.IntN(4) == 0
		in.create = in.create && !in.remove
		in.replace = !in.create && !in.remove && rng.IntN(4) == 0
		in.id, ok = p.inode(rng, false)
		return in, ok
	case truncate, extents:
		in.size = rng.IntN(8)
		in.id, ok = p.inode(rng, true)
		return in, ok
	case commit:
		in.commit = wire.CommitMode(1 + rng.IntN(3))
		in.offset, in.length = rng.IntN(6), 1+rng.IntN(3)
		if in.commit != wire.CommitMode_COMMIT_MODE_OVERLAY {
			in.offset = 0
		}
		in.id, ok = p.inode(rng, true)
		return in, ok
	case save:
		in.commit, in.replace = wire.CommitMode_COMMIT_MODE_REPLACE, rng.IntN(2) == 0
		in.length = 1 + rng.IntN(3)
		if rng.IntN(3) == 0 {
			in.source, ok = p.inode(rng, true)
			return in, ok
		}
	case concat:
		in.replace = rng.IntN(2) == 0
		if rng.IntN(2) == 0 {
			in.consume, _ = p.directory(rng)
		}
		if in.consume == in.in {
			in.consume = 0 // the file would be consumed with it
		}
		in.second, _ = p.inode(rng, true)
		in.source, ok = p.inode(rng, true)
		return in, ok
	case clone:
		in.commit = []wire.CommitMode{wire.CommitMode_COMMIT_MODE_REPLACE, wire.CommitMode_COMMIT_MODE_APPEND}[rng.IntN(2)]
		in.source, ok = p.inode(rng, true)
		if ok {
			in.id, ok = p.inode(rng, true)
		}
		return in, ok
	}
	return in, true
}

// inside directs some operations at a child of a directory. No directory becomes a
// child: its contents would have no place in the model.
func (w *worker) inside(p *playground, in *input) {
	if w.rng.IntN(3) != 0 {
		return
	}
	switch in.verb {
	case create, symlink, lookup, readdir, unlink, save, concat:
		in.in, _ = p.directory(w.rng)
	case rename:
		if in.in, _ = p.directory(w.rng); in.in != 0 && w.rng.IntN(2) == 0 {
			in.toIn, _ = p.directory(w.rng)
		}
	}
}

// draft is a file without a name, of a worker's session.
type draft struct {
	id   uint64
	mode uint32
}

// draft takes a file without a name for a save: one left by a failed save, or a new
// one. No client can see it, so making it is no operation of the arena.
func (w *worker) draft(ctx context.Context, p *playground, in *input) bool {
	if n := len(w.drafts); n > 0 {
		in.id, in.mode = w.drafts[n-1].id, w.drafts[n-1].mode
		w.drafts = w.drafts[:n-1]
		return true
	}
	resp, err := w.meta.Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_Create{Create: &wire.Create{Parent: p.dirs[0],
		Type: wire.FileType_FILE_TYPE_REGULAR, Mode: in.mode, Unlinked: true}}})
	in.id = resp.GetEntry().GetAttr().GetInode()
	return err == nil
}

// grant takes a stripe number for a commit, from the service if none is left.
func (w *worker) grant(ctx context.Context, in *input) bool {
	if len(w.stripes) == 0 {
		resp, err := w.meta.Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_Grant{Grant: &wire.Grant{Count: 16}}})
		if err != nil {
			return false
		}
		g := resp.GetGrant()
		for i := range uint64(g.GetCount()) {
			w.stripes = append(w.stripes, g.GetFirst()+i)
		}
		w.h.granted(w.id, w.stripes)
	}
	in.stripe, w.stripes = w.stripes[0], w.stripes[1:]
	return true
}

// granted records numbers given to a client; none is given twice.
func (h *history) granted(client int, stripes []uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.grants == nil {
		h.grants = map[uint64]int{}
	}
	for _, id := range stripes {
		if _, ok := h.grants[id]; ok {
			h.twice = append(h.twice, id)
		}
		h.grants[id] = client
	}
}
