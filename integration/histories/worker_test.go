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

// history is what clients asked for and were answered, arena by arena. Its clock
// counts events: what was answered before something was asked has the lower number.
type history struct {
	clock  atomic.Int64
	arenas []*playground

	mu     sync.Mutex
	grants map[uint64]int // stripe numbers, by who was given them
	twice  []uint64       // numbers given to two
}

// playground is an arena of the history.
type playground struct {
	dirs  [dirsOfArena]uint64
	paths [dirsOfArena]string

	mu  sync.Mutex
	ops []porcupine.Operation
	ids []known
}

// known is an inode that somebody has been told of.
type known struct {
	id   uint64
	file bool // a regular one
	dir  bool
}

// never is the time of an answer that did not come.
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
		if o.id != 0 && in.verb != unlink && in.verb != rmdir {
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

// inode picks one that is known; of a file only, where file says so.
func (p *playground) inode(rng *rand.Rand, file bool) (uint64, bool) {
	return p.pick(rng, func(k known) bool { return k.file || !file })
}

// directory picks one that is known.
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
	cache   *client.Client // meta, where it has a cache
	close   func() error
	nap     *incluster.Nap // of its process; nil: it never sleeps
	looks   bool           // it changes nothing
	alone   bool           // it asks for exclusive leases, and works in bursts
	pause   time.Duration  // the longest between two operations
	in      burst
	devices []uint32
	stripes []uint64 // granted and not used
	drafts  []draft  // files without a name
	done    int
	unknown int
}

// run works until ctx ends.
func (w *worker) run(ctx context.Context) {
	for ctx.Err() == nil {
		w.do(w.where())
		select {
		case <-time.After(time.Duration(w.rng.Int64N(int64(w.pause)))):
		case <-ctx.Done():
		}
	}
}

// burst is some operations in one directory: what an exclusive lease is for.
type burst struct {
	p    *playground
	dir  int
	left int
}

// where draws the arena of the next operation.
func (w *worker) where() *playground {
	any := w.h.arenas[w.rng.IntN(len(w.h.arenas))]
	if !w.alone {
		return any
	}
	if w.in.left == 0 {
		w.in = burst{p: any, dir: w.rng.IntN(dirsOfArena), left: 10 + w.rng.IntN(40)}
	}
	w.in.left--
	return w.in.p
}

// burst makes an operation one of a burst: most make files, or remove them.
func (w *worker) burst(in *input) {
	switch n := w.rng.IntN(10); {
	case n < 5:
		in.verb = create
	case n < 8:
		in.verb = unlink
	}
	in.dir, in.slot = w.in.dir, w.in.dir*namesOfDir+in.slot%namesOfDir
}

// do has one random operation carried out.
func (w *worker) do(p *playground) {
	in, ok := w.choose(p)
	if !ok {
		return
	}
	// Some give up early, and leave behind that nobody knows what became of it.
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
		w.drafts = append(w.drafts, draft{in.id, in.mode}) // as it was
	}
}

// ask carries an operation out and records it.
func (w *worker) ask(ctx context.Context, p *playground, in input) output {
	if w.nap != nil {
		w.nap.Sleep()
	}
	call := w.h.clock.Add(1)
	resp, err := w.serve(ctx, p, in)
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
	case w.alone:
		w.burst(&in)
	case rng.IntN(4) == 0:
		in.verb = create // most others need files
	case rng.IntN(3) == 0:
		in.verb = []verb{mkdir, mkdir, rmdir, rmdir, rmtree, rmtree, link, link, save, symlink, concat}[rng.IntN(11)] // those that seldom succeed
	}
	switch in.verb {
	case create, mkdir:
		in.exclusive = w.alone || rng.IntN(2) == 0
	case symlink:
		in.value = fmt.Sprint("t", rng.IntN(1000))
	case rename:
		in.noReplace = rng.IntN(4) == 0
		in.exchange = !in.noReplace && rng.IntN(4) == 0
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

// draft is a file without a name, of a worker's session.
type draft struct {
	id   uint64
	mode uint32
}

// draft takes a file without a name for a save: one that a save left that failed, or
// a new one. Nobody can see it, so that its making is no operation of the arena.
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

// grant takes a stripe number for a commit, from the service where none is left.
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

// granted notes that numbers were given to a client; none is given twice.
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

// request is the operation as the service is asked for it.
func request(p *playground, in input, devices []uint32) *wire.MetaRequest {
	dir := func(slot int) uint64 { return p.dirs[slot/namesOfDir] }
	name := func(slot int) string { return names[slot%namesOfDir] }
	switch in.verb {
	case symlink:
		return &wire.MetaRequest{Op: &wire.MetaRequest_Create{Create: &wire.Create{Parent: dir(in.slot), Name: name(in.slot), Type: wire.FileType_FILE_TYPE_SYMLINK, Target: in.value}}}
	case create, mkdir:
		typ := wire.FileType_FILE_TYPE_REGULAR
		if in.verb == mkdir {
			typ = wire.FileType_FILE_TYPE_DIRECTORY
		}
		return &wire.MetaRequest{Op: &wire.MetaRequest_Create{Create: &wire.Create{Parent: dir(in.slot), Name: name(in.slot), Type: typ, Mode: in.mode, Exclusive: in.exclusive}}}
	case lookup:
		return &wire.MetaRequest{Op: &wire.MetaRequest_Lookup{Lookup: &wire.Lookup{Parent: dir(in.slot), Name: name(in.slot)}}}
	case stat:
		return &wire.MetaRequest{Op: &wire.MetaRequest_GetAttr{GetAttr: &wire.GetAttr{Inode: in.id}}}
	case readdir:
		return &wire.MetaRequest{Op: &wire.MetaRequest_ReadDir{ReadDir: &wire.ReadDir{Inode: p.dirs[in.dir], Limit: 100}}}
	case rename:
		return &wire.MetaRequest{Op: &wire.MetaRequest_Rename{Rename: &wire.Rename{Parent: dir(in.slot), Name: name(in.slot),
			NewParent: dir(in.to), NewName: name(in.to), NoReplace: in.noReplace, Exchange: in.exchange}}}
	case link:
		return &wire.MetaRequest{Op: &wire.MetaRequest_Link{Link: &wire.Link{Inode: in.id, Parent: dir(in.slot), Name: name(in.slot)}}}
	case unlink, rmdir:
		return &wire.MetaRequest{Op: &wire.MetaRequest_Remove{Remove: &wire.Remove{Parent: dir(in.slot), Name: name(in.slot), Directory: in.verb == rmdir}}}
	case rmtree:
		return &wire.MetaRequest{Op: &wire.MetaRequest_RemoveTree{RemoveTree: &wire.RemoveTree{Parent: dir(in.slot), Name: name(in.slot)}}}
	case chmod:
		return &wire.MetaRequest{Op: &wire.MetaRequest_SetAttr{SetAttr: &wire.SetAttr{Inode: in.id, Valid: uint32(wire.SetAttrField_SET_ATTR_MODE), Mode: in.mode}}}
	case truncate:
		return &wire.MetaRequest{Op: &wire.MetaRequest_SetAttr{SetAttr: &wire.SetAttr{Inode: in.id, Valid: uint32(wire.SetAttrField_SET_ATTR_SIZE), Size: uint64(in.size)}}}
	case setxattr:
		return &wire.MetaRequest{Op: &wire.MetaRequest_SetXattr{SetXattr: &wire.SetXattr{Inode: in.id, Name: "user.x", Value: []byte(in.value), Create: in.create, Replace: in.replace, Remove: in.remove}}}
	case getxattr:
		return &wire.MetaRequest{Op: &wire.MetaRequest_GetXattr{GetXattr: &wire.GetXattr{Inode: in.id, Name: "user.x"}}}
	case clone:
		return cloneRequest(in, nil)
	case concat:
		ranges := []*wire.CloneRange{{Inode: in.source}}
		if in.second != 0 {
			ranges = append(ranges, &wire.CloneRange{Inode: in.second})
		}
		return &wire.MetaRequest{Op: &wire.MetaRequest_Concat{Concat: &wire.Concat{Inode: in.id, Ranges: ranges, Consume: in.consume,
			Link: &wire.LinkTarget{Parent: dir(in.slot), Name: name(in.slot), Replace: in.replace}}}}
	case save:
		l := &wire.LinkTarget{Parent: dir(in.slot), Name: name(in.slot), Replace: in.replace}
		if in.source != 0 {
			return cloneRequest(in, l)
		}
		return commitRequest(in, devices, l)
	case extents:
		return &wire.MetaRequest{Op: &wire.MetaRequest_GetExtents{GetExtents: &wire.GetExtents{Inode: in.id, Limit: 1000}}}
	}
	return commitRequest(in, devices, nil)
}

func cloneRequest(in input, link *wire.LinkTarget) *wire.MetaRequest {
	return &wire.MetaRequest{Op: &wire.MetaRequest_Clone{Clone: &wire.Clone{Inode: in.id, Mode: in.commit, Link: link, Ranges: []*wire.CloneRange{{Inode: in.source}}}}}
}

func commitRequest(in input, devices []uint32, link *wire.LinkTarget) *wire.MetaRequest {
	stripe := &wire.Stripe{Id: in.stripe, Scheme: &wire.Scheme{K: 1, M: uint32(len(devices) - 1)}, Length: uint64(in.length)}
	for i, d := range devices {
		stripe.Chunks = append(stripe.Chunks, &wire.ChunkState{Device: d, Crc: uint32(in.stripe)*31 + uint32(i), Level: uint32(moraine.NVMe)})
	}
	return &wire.MetaRequest{Op: &wire.MetaRequest_Commit{Commit: &wire.Commit{Inode: in.id, Mode: in.commit, Level: uint32(moraine.NVMe), Link: link,
		Stripes: []*wire.Stripe{stripe}, Extents: []*wire.Extent{{Offset: uint64(in.offset), Length: uint64(in.length), Stripe: in.stripe}}}}}
}

// definite are the errors that say what became of an operation.
var definite = map[moraine.Kind]string{moraine.NotFound: notFound, moraine.Exists: exists, moraine.IsDirectory: isDir,
	moraine.NotDirectory: notDir, moraine.NoAttribute: noAttr}

// answer is what a client was told.
func answer(in input, resp *wire.MetaResponse, err error) output {
	if err != nil {
		text, ok := definite[moraine.KindOf(err)]
		if in.verb == link && moraine.KindOf(err) == moraine.PermissionDenied {
			text, ok = denied, true
		}
		return output{err: text, unknown: !ok}
	}
	var out output
	switch in.verb {
	case readdir:
		for _, e := range resp.GetReadDir().GetEntries() {
			o := attributes(e.GetAttr())
			o.name = e.GetName()
			out.entries = append(out.entries, o)
		}
	case unlink, rmdir:
		out.id = resp.GetRemove().GetInode()
	case getxattr:
		out.value = string(resp.GetXattr().GetValue())
	case commit, clone, save, concat:
		if resp.GetCommit() == nil {
			return output{unknown: true} // it is a job, which goes on
		}
		out = attributes(resp.GetCommit().GetAttr())
	case extents:
		r := resp.GetExtents()
		out.cells = make([]cell, r.GetAttr().GetSize())
		for _, e := range r.GetExtents() {
			for i := range e.Length {
				out.cells[e.Offset+i] = cell{e.Stripe, e.StripeOffset + i}
			}
		}
	case rename, setxattr, rmtree:
	default:
		out = attributes(resp.GetEntry().GetAttr())
	}
	return out
}

func attributes(a *wire.Attr) output {
	return output{id: a.GetInode(), dir: a.GetType() == wire.FileType_FILE_TYPE_DIRECTORY, mode: a.GetMode(), target: a.GetTarget(), nlink: a.GetNlink(), size: a.GetSize()}
}
