package state_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"sort"
	"testing"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/metadata/state/statetest"
	"github.com/morainefs/moraine/transport/wire"
	"google.golang.org/protobuf/proto"
)

var (
	modelSeed = flag.Uint64("state.seed", 0, "seed of the random commands; 0 takes a few fixed ones")
	modelOps  = flag.Int("state.ops", 350, "random commands of each seed")
)

// modelCell is what one byte of a file is made of; the zero cell is a hole.
type modelCell struct {
	stripe uint64
	at     uint64
}

// modelNode is a file, directory or link as the model has it.
type modelNode struct {
	id       uint64
	typ      wire.FileType
	parent   *modelNode
	children map[string]*modelNode
	cells    []modelCell
	target   string
	owner    *client
	names    int  // of a file or link
	linked   bool // has had several: those in a removed tree count until the job has come to them
	xattrs   map[string]string
	attr     modelAttr
	policy   modelPolicy
}

// model is a namespace in plain Go, which the state machine is held against.
type model struct {
	*bench
	rng     *rand.Rand
	replica *statetest.KV
	root    *modelNode
	nodes   []*modelNode // alive, in the order of their making
	clients []*client
	grants  map[*client][]uint64 // unused numbers
	most    int                  // keys that one command wrote

	tier   *tier
	movers map[string]*miniMover

	quotas    map[*modelNode]modelUsage // 0: no bound
	overQuota int                       // commands that a quota refused
	recounts  int
	made      map[string]int // commands, by what they are
	// content has the bytes of each generation that an object was made of, and
	// staged those of stripes that objects were staged to.
	content map[string][]modelCell
	staged  map[uint64][]modelCell
}

func TestRandomCommandsAgainstModel(t *testing.T) {
	seeds := []uint64{1, 2, 3}
	if *modelSeed != 0 {
		seeds = []uint64{*modelSeed}
	}
	models := make([]*model, len(seeds))
	t.Run("seeds", func(t *testing.T) {
		for i, seed := range seeds {
			t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
				t.Parallel()
				models[i] = newModel(t, seed)
				models[i].run()
			})
		}
	})
	if *modelSeed != 0 || t.Failed() {
		return
	}
	made := map[string]int{}
	for _, m := range models {
		for op, n := range m.made {
			made[op] += n
		}
	}
	holdCommands(t, made)
}

// run makes random commands, and looks whether they did what they should.
func (m *model) run() {
	for n := range *modelOps {
		m.step()
		if n%100 == 99 {
			m.compare()
		}
	}
	m.compare()
	m.settleTier()
	m.t.Logf("no command wrote more than %d keys, %d were refused for a quota, %d recounts", m.most, m.overQuota, m.recounts)
	if m.most > 2000 {
		m.t.Errorf("a command wrote %d keys", m.most)
	}
}

func newModel(t *testing.T, seed uint64) *model { return newModelOf(newCluster(t, 7), seed) }

// newModelOf is a model of a bench that has 7 hosts and nothing else.
func newModelOf(b *bench, seed uint64) *model {
	m := &model{bench: b, rng: rand.New(rand.NewPCG(seed, 0)), grants: map[*client][]uint64{}, made: map[string]int{}}
	m.clients = []*client{m.open(nil), m.open(nil)}
	m.root = &modelNode{id: m.clients[0].root, typ: wire.FileType_FILE_TYPE_DIRECTORY, children: map[string]*modelNode{}, names: 1}
	m.nodes = []*modelNode{m.root}
	m.root.attr = attrOf(m.clients[0].attr(m.root.id))
	m.replica = m.own()
	m.bench.mirror = m.onReplica
	m.bench.settle = 20_000
	m.tier = &tier{bench: m.bench, s: &bucket{objects: map[string]string{}, uploads: map[string]upload{}}, c: m.open(nil)}
	m.movers, m.content, m.staged = map[string]*miniMover{}, map[string][]modelCell{}, map[uint64][]modelCell{}
	m.quotas = map[*modelNode]modelUsage{}
	m.tier.staged = func(stripe uint64, o *wire.Object, off, n uint64) {
		m.staged[stripe] = m.content[fmt.Sprintf("%x/%x", o.Inode, o.Generation)][off : off+n]
	}
	return m
}

// mutate sends one request to both replicas, sometimes twice, and checks that
// they do the same.
func (m *model) mutate(c *client, req *wire.MetaRequest) *wire.MetaResponse {
	m.t.Helper()
	req = c.request(req)
	before := m.quotaUsage()
	resp := m.replicate(c, req)
	m.holdQuotas(req, resp, before)
	if m.rng.IntN(10) == 0 {
		again := m.replicate(c, proto.Clone(req).(*wire.MetaRequest))
		if !proto.Equal(resp, again) {
			m.t.Fatalf("the repeat was answered %v, the first time %v", again, resp)
		}
	}
	return resp
}

func (m *model) replicate(c *client, req *wire.MetaRequest) *wire.MetaResponse {
	m.t.Helper()
	return m.applyBoth(&statepb.Command{Caller: &statepb.Caller{Node: c.node}, Op: &statepb.Command_Request{Request: req}})
}

func (m *model) applyBoth(cmd *statepb.Command) *wire.MetaResponse {
	m.t.Helper()
	cmd = m.command(cmd)
	before := m.kv.Sets + m.kv.Deletes
	res := m.applyAll(cmd)[0]
	m.most = max(m.most, m.kv.Sets+m.kv.Deletes-before)
	return res.Response
}

// onReplica has the replica apply a command too.
func (m *model) onReplica(cmd *statepb.Command, res state.Result) {
	m.made[opOf(cmd)]++
	other, err := m.m.Apply(m.replica, m.index, cmd)
	if err != nil || !proto.Equal(other.Response, res.Response) {
		m.t.Fatalf("replicas answer %v and %v (%v)", res.Response, other.Response, err)
	}
}

func (m *model) pick(ok func(*modelNode) bool) *modelNode {
	var all []*modelNode
	for _, n := range m.nodes {
		if ok(n) {
			all = append(all, n)
		}
	}
	if len(all) == 0 {
		return nil
	}
	return all[m.rng.IntN(len(all))]
}

func isDir(n *modelNode) bool { return n.typ == wire.FileType_FILE_TYPE_DIRECTORY }
func isFile(n *modelNode) bool {
	return n.typ == wire.FileType_FILE_TYPE_REGULAR
}

func (m *model) name() string { return string(rune('a' + m.rng.IntN(12))) }

func (m *model) step() {
	m.t.Helper()
	c := m.clients[m.rng.IntN(len(m.clients))]
	switch n := m.rng.IntN(100); {
	case n < 16:
		m.stepCreate(c)
	case n < 17:
		m.stepXattr(c)
	case n < 18:
		[]func(*client){m.stepAttr, m.stepAttr, m.stepEndGrant, m.stepPolicy}[m.rng.IntN(4)](c)
	case n < 22:
		m.stepLink(c)
	case n < 30:
		m.stepRename(c)
	case n < 35:
		m.stepRemove(c)
	case n < 36:
		m.stepRelease(c)
	case n < 38:
		m.stepRemoveTree(c)
	case n < 44:
		m.stepTruncate(c)
	case n < 52:
		m.stepClone(c)
	case n < 62:
		m.stepTier()
	case n < 94:
		m.stepCommit(c)
	case n < 96:
		m.stepSession()
	case n < 97:
		m.stepQuota()
	case n < 98:
		m.stepCloneTree(c)
	default:
		m.applyBoth(&statepb.Command{Op: &statepb.Command_Tick{Tick: &statepb.Tick{Millis: 500}}})
		m.runJobs()
	}
}

func (m *model) expect(resp *wire.MetaResponse, want string, what string, args ...any) bool {
	m.t.Helper()
	if got := kind(resp); got != want {
		m.t.Fatalf("%s: %s (%s), want %s", fmt.Sprintf(what, args...), got, resp.GetError().GetText(), want)
	}
	return want == "ok"
}

func (m *model) stepCreate(c *client) {
	dir, name := m.pick(isDir), m.name()
	types := []wire.FileType{wire.FileType_FILE_TYPE_REGULAR, wire.FileType_FILE_TYPE_REGULAR, wire.FileType_FILE_TYPE_DIRECTORY, wire.FileType_FILE_TYPE_SYMLINK}
	op := &wire.Create{Parent: dir.id, Name: name, Type: types[m.rng.IntN(len(types))], Mode: 0o644, Exclusive: m.rng.IntN(2) == 0}
	if op.Type == wire.FileType_FILE_TYPE_SYMLINK {
		op.Target = "somewhere"
	}
	if op.Type == wire.FileType_FILE_TYPE_REGULAR && m.rng.IntN(3) == 0 {
		op.Name, op.Unlinked = "", true
	}
	resp := m.mutate(c, &wire.MetaRequest{Op: &wire.MetaRequest_Create{Create: op}})
	have := dir.children[name]
	switch {
	case overQuota(resp):
	case op.Unlinked || have == nil:
		m.expect(resp, "ok", "create")
		n := &modelNode{id: resp.GetEntry().GetAttr().GetInode(), typ: op.Type, target: op.Target, attr: attrOf(resp.GetEntry().GetAttr())}
		if isDir(n) {
			n.children = map[string]*modelNode{}
		}
		if op.Unlinked {
			n.owner = c
		} else {
			n.parent, n.names, dir.children[name] = dir, 1, n
		}
		m.nodes = append(m.nodes, n)
	case op.Exclusive || op.Type == wire.FileType_FILE_TYPE_SYMLINK:
		m.expect(resp, "already exists", "create over %v", have.typ)
	case isDir(have) && op.Type != have.typ:
		m.expect(resp, "is a directory", "create over a directory")
	case have.typ != op.Type:
		m.expect(resp, "already exists", "create over another type")
	default:
		m.expect(resp, "ok", "open")
		if resp.GetEntry().GetAttr().GetInode() != have.id {
			m.t.Fatalf("create found inode %x, want %x", resp.GetEntry().GetAttr().GetInode(), have.id)
		}
	}
}

// forget takes a node that lost a name out of the model, with all below it,
// unless it has others.
func (m *model) forget(n *modelNode) {
	for _, name := range slices.Sorted(mapKeys(n.children)) {
		m.forget(n.children[name])
	}
	if n.names--; n.names <= 0 {
		m.gone(n)
	}
}

// gone takes a node out of the model.
func (m *model) gone(n *modelNode) {
	m.nodes = slices.DeleteFunc(m.nodes, func(o *modelNode) bool { return o == n })
}

func mapKeys[V any](mm map[string]V) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range mm {
			if !yield(k) {
				return
			}
		}
	}
}

func below(n, top *modelNode) bool {
	for ; n != nil; n = n.parent {
		if n == top {
			return true
		}
	}
	return false
}

func (m *model) stepRename(c *client) {
	dir, newDir, name, newName := m.pick(isDir), m.pick(isDir), m.name(), m.name()
	op := &wire.Rename{Parent: dir.id, Name: name, NewParent: newDir.id, NewName: newName}
	op.NoReplace = m.rng.IntN(5) == 0
	op.Exchange = !op.NoReplace && m.rng.IntN(5) == 0
	op.Keep = m.rng.IntN(3) == 0 && !m.linkedAt(newDir, newName)
	resp := m.mutate(c, &wire.MetaRequest{Op: &wire.MetaRequest_Rename{Rename: op}})
	from, to := dir.children[name], newDir.children[newName]
	switch {
	case overQuota(resp):
	case from == nil:
		m.expect(resp, "not found", "rename of nothing")
	case isDir(from) && below(newDir, from) && dir != newDir:
		m.expect(resp, "invalid argument", "rename below itself")
	case from == to:
		m.expect(resp, "ok", "rename onto itself")
	case to != nil && op.NoReplace:
		m.expect(resp, "already exists", "rename without replace")
	case op.Exchange && to == nil:
		m.expect(resp, "not found", "exchange with nothing")
	case op.Exchange && isDir(to) && below(dir, to) && dir != newDir:
		m.expect(resp, "invalid argument", "exchange below itself")
	case op.Exchange:
		m.expect(resp, "ok", "exchange")
		dir.children[name], newDir.children[newName] = to, from
		to.parent, from.parent = dir, newDir
	case to != nil && isDir(to) && !isDir(from):
		m.expect(resp, "is a directory", "rename of a file onto a directory")
	case to != nil && !isDir(to) && isDir(from):
		m.expect(resp, "not a directory", "rename of a directory onto a file")
	case to != nil && len(to.children) > 0:
		m.expect(resp, "directory not empty", "rename onto a directory")
	default:
		m.expect(resp, "ok", "rename")
		if to != nil {
			m.loseName(c, to, op.Keep)
		}
		delete(dir.children, name)
		newDir.children[newName], from.parent = from, newDir
	}
}

func (m *model) stepRemove(c *client) {
	dir, name, asDir, keep := m.pick(isDir), m.name(), m.rng.IntN(3) == 0, m.rng.IntN(3) == 0
	keep = keep && !m.linkedAt(dir, name)
	resp := m.mutate(c, &wire.MetaRequest{Op: &wire.MetaRequest_Remove{Remove: &wire.Remove{Parent: dir.id, Name: name, Directory: asDir, Keep: keep}}})
	n := dir.children[name]
	switch {
	case n == nil:
		m.expect(resp, "not found", "remove")
	case asDir && !isDir(n):
		m.expect(resp, "not a directory", "rmdir of a file")
	case !asDir && isDir(n):
		m.expect(resp, "is a directory", "unlink of a directory")
	case len(n.children) > 0:
		m.expect(resp, "directory not empty", "rmdir")
	default:
		m.expect(resp, "ok", "remove")
		delete(dir.children, name)
		m.loseName(c, n, keep)
	}
}

// loseName takes a name from a node, which a session keeps if it is the last
// one and the session says so.
func (m *model) loseName(c *client, n *modelNode, keep bool) {
	if keep && n.names == 1 && !isDir(n) {
		n.names, n.parent, n.owner = 0, nil, c
		return
	}
	m.forget(n)
}

// linkedAt reports whether a name's file has had several: whether it then is the
// last one depends on jobs.
func (m *model) linkedAt(dir *modelNode, name string) bool {
	n := dir.children[name]
	return n != nil && n.linked
}

func (m *model) stepLink(c *client) {
	f := m.pick(func(n *modelNode) bool { return n != m.root })
	dir, name := m.pick(isDir), m.name()
	if f == nil {
		return
	}
	resp := m.mutate(c, &wire.MetaRequest{Op: &wire.MetaRequest_Link{Link: &wire.Link{Inode: f.id, Parent: dir.id, Name: name}}})
	switch {
	case overQuota(resp):
	case f.owner != nil && f.owner != c:
		m.expect(resp, "permission denied", "link of another's file")
	case isDir(f):
		m.expect(resp, "permission denied", "link of a directory")
	case dir.children[name] != nil:
		m.expect(resp, "already exists", "link over a name")
	default:
		m.expect(resp, "ok", "link")
		f.linked = f.linked || f.names > 0
		f.owner, f.names, dir.children[name] = nil, f.names+1, f
	}
}

func (m *model) stepRelease(c *client) {
	var ids []uint64
	for _, n := range slices.Clone(m.nodes) {
		if n.owner == nil || m.rng.IntN(2) == 0 {
			continue
		}
		ids = append(ids, n.id)
		if n.owner == c {
			m.gone(n)
		}
	}
	resp := m.mutate(c, &wire.MetaRequest{Op: &wire.MetaRequest_Release{Release: &wire.Release{Inodes: ids}}})
	m.expect(resp, "ok", "release")
}

func (m *model) stepXattr(c *client) {
	n := m.pick(func(n *modelNode) bool { return n.owner == nil || n.owner == c })
	op := &wire.SetXattr{Inode: n.id, Name: "user." + m.name(), Value: []byte(m.name()), Remove: m.rng.IntN(3) == 0}
	resp := m.mutate(c, &wire.MetaRequest{Op: &wire.MetaRequest_SetXattr{SetXattr: op}})
	_, there := n.xattrs[op.Name]
	switch {
	case op.Remove && !there:
		m.expect(resp, "no such attribute", "remove of an attribute")
	case op.Remove:
		m.expect(resp, "ok", "remove of an attribute")
		delete(n.xattrs, op.Name)
	default:
		m.expect(resp, "ok", "set attribute")
		if n.xattrs == nil {
			n.xattrs = map[string]string{}
		}
		n.xattrs[op.Name] = string(op.Value)
	}
}

// compareXattrs holds a node's extended attributes against the state.
func (m *model) compareXattrs(c *client, n *modelNode) {
	m.t.Helper()
	names := m.ok(c.xattr(n.id, "")).GetXattr().GetNames()
	if !slices.Equal(names, slices.Sorted(mapKeys(n.xattrs))) {
		m.t.Fatalf("inode %x has attributes %q, want %q", n.id, names, n.xattrs)
	}
	for _, name := range names {
		if have := string(m.ok(c.xattr(n.id, name)).GetXattr().GetValue()); have != n.xattrs[name] {
			m.t.Fatalf("attribute %s of %x is %q, want %q", name, n.id, have, n.xattrs[name])
		}
	}
}

func (m *model) stepRemoveTree(c *client) {
	dir, name := m.pick(isDir), m.name()
	resp := m.mutate(c, &wire.MetaRequest{Op: &wire.MetaRequest_RemoveTree{RemoveTree: &wire.RemoveTree{Parent: dir.id, Name: name}}})
	switch n := dir.children[name]; {
	case n == nil:
		m.expect(resp, "not found", "remove tree")
	case !isDir(n):
		m.expect(resp, "not a directory", "remove tree of a file")
	default:
		m.expect(resp, "ok", "remove tree")
		delete(dir.children, name)
		m.forget(n)
	}
}

func (m *model) mayWrite(c *client) *modelNode {
	return m.pick(func(n *modelNode) bool { return isFile(n) && (n.owner == nil || n.owner == c) })
}

func (m *model) stepTruncate(c *client) {
	f := m.mayWrite(c)
	if f == nil {
		return
	}
	size := m.rng.IntN(len(f.cells)*3/2 + 10)
	if m.rng.IntN(4) == 0 {
		size = 0
	}
	resp := m.mutate(c, &wire.MetaRequest{Op: &wire.MetaRequest_SetAttr{SetAttr: &wire.SetAttr{Inode: f.id, Valid: uint32(wire.SetAttrField_SET_ATTR_SIZE), Size: uint64(size)}}})
	if overQuota(resp) {
		return
	}
	m.expect(resp, "ok", "truncate")
	f.resize(size)
}

func (n *modelNode) resize(size int) {
	if size <= len(n.cells) {
		n.cells = n.cells[:size:size]
		return
	}
	n.cells = append(n.cells, make([]modelCell, size-len(n.cells))...)
}

// number takes an unused stripe number of the client's grants.
func (m *model) number(c *client) uint64 {
	if len(m.grants[c]) == 0 {
		count := uint32(1 + m.rng.IntN(300))
		resp := m.mutate(c, &wire.MetaRequest{Op: &wire.MetaRequest_Grant{Grant: &wire.Grant{Count: count}}})
		m.expect(resp, "ok", "grant")
		for n := range uint64(count) {
			m.grants[c] = append(m.grants[c], resp.GetGrant().GetFirst()+n)
		}
	}
	id := m.grants[c][0]
	m.grants[c] = m.grants[c][1:]
	return id
}

func (m *model) stepCommit(c *client) {
	f := m.mayWrite(c)
	if f == nil {
		return
	}
	op := &wire.Commit{Inode: f.id, Level: uint32(moraine.NVMe), Mode: wire.CommitMode(1 + m.rng.IntN(3))}
	if op.Mode == wire.CommitMode_COMMIT_MODE_REPLACE && m.rng.IntN(3) > 0 {
		op.Mode = wire.CommitMode_COMMIT_MODE_APPEND
	}
	at := uint64(0)
	if op.Mode == wire.CommitMode_COMMIT_MODE_OVERLAY {
		at = m.rng.Uint64N(uint64(len(f.cells)) + 20)
	}
	m.makeExtents(c, op, at)
	var link *modelNode
	if f.owner != nil && m.rng.IntN(2) == 0 {
		link = m.pick(isDir)
		op.Link = &wire.LinkTarget{Parent: link.id, Name: m.name(), Replace: m.rng.IntN(2) == 0}
	}
	resp := m.mutate(c, &wire.MetaRequest{Op: &wire.MetaRequest_Commit{Commit: op}})
	if overQuota(resp) {
		return
	}
	if link != nil && link.children[op.Link.Name] != nil {
		have := link.children[op.Link.Name]
		switch {
		case isDir(have):
			m.expect(resp, "is a directory", "link over a directory")
			return
		case !op.Link.Replace || !isFile(have):
			m.expect(resp, "already exists", "link")
			return
		}
		m.forget(have)
	}
	m.expect(resp, "ok", "commit %v of %d extents", op.Mode, len(op.Extents))
	if link != nil {
		link.children[op.Link.Name], f.parent, f.owner, f.names = f, link, nil, 1
	}
	f.lay(op)
	if got := resp.GetCommit().GetAttr().GetSize(); got != uint64(len(f.cells)) {
		m.t.Fatalf("size is %d, want %d", got, len(f.cells))
	}
}

// stepClone lays ranges of files over a file.
func (m *model) stepClone(c *client) {
	f := m.mayWrite(c)
	if f == nil {
		return
	}
	op := &wire.Clone{Inode: f.id, Mode: []wire.CommitMode{wire.CommitMode_COMMIT_MODE_REPLACE, wire.CommitMode_COMMIT_MODE_APPEND}[m.rng.IntN(2)]}
	var cells []modelCell
	if op.Mode == wire.CommitMode_COMMIT_MODE_APPEND {
		cells = f.cells
	}
	cells = slices.Clip(cells)
	past := false
	for range 1 + m.rng.IntN(4) {
		src := m.mayWrite(c)
		if m.rng.IntN(4) == 0 {
			src = f
		}
		r := &wire.CloneRange{Inode: src.id}
		if m.rng.IntN(3) > 0 {
			r.Offset = m.rng.Uint64N(uint64(len(src.cells)) + 1)
			r.Length = m.rng.Uint64N(uint64(len(src.cells)) - r.Offset + 1)
		}
		if m.rng.IntN(30) == 0 {
			r.Length, past = uint64(len(src.cells))+1, true
		}
		op.Ranges = append(op.Ranges, r)
		if past {
			continue
		}
		to := r.Offset + r.Length
		if r.Length == 0 {
			to = uint64(len(src.cells))
		}
		cells = append(cells, src.cells[r.Offset:to]...)
	}
	resp := m.mutate(c, &wire.MetaRequest{Op: &wire.MetaRequest_Clone{Clone: op}})
	switch {
	case overQuota(resp):
	case kind(resp) == "too large": // of many small extents
	case past:
		m.expect(resp, "invalid argument", "clone past the end")
	default:
		if m.expect(resp, "ok", "clone"); resp.GetCommit().GetAttr().GetSize() != uint64(len(cells)) {
			m.t.Fatalf("size is %d, want %d", resp.GetCommit().GetAttr().GetSize(), len(cells))
		}
		f.cells = cells
	}
}

// stepTier queues a move of a file, or of a tree, or has a mover work, which may
// die on the way.
func (m *model) stepTier() {
	if m.rng.IntN(2) == 0 {
		n := m.pick(func(n *modelNode) bool { return isFile(n) || n != m.root && m.rng.IntN(4) == 0 })
		if n == nil {
			return
		}
		m.tier.queue([]wire.JobKind{flushJob, flushJob, evictJob, stageJob}[m.rng.IntN(4)], n.id)
		return
	}
	for _, n := range m.nodes {
		if isFile(n) {
			m.content[fmt.Sprintf("%x/%x", n.id, m.tier.c.attr(n.id).Generation)] = n.cells
		}
	}
	m.tier.runTrees()
	m.tier.arrive()
	if m.rng.IntN(3) == 0 {
		m.tier.crash = &crash{at: m.rng.IntN(9), how: []string{"before", "after", "late", "twice"}[m.rng.IntN(4)]}
	}
	node := fmt.Sprint("n", 1+m.rng.IntN(3))
	if m.movers[node] == nil {
		m.movers[node] = m.tier.mover(node)
	}
	for range 1 + m.rng.IntN(4) {
		m.movers[node].work()
		if c := m.tier.crash; c != nil && c.hit != "" {
			break
		}
	}
	m.tier.crash = nil
	if m.rng.IntN(4) == 0 {
		m.tier.wait(5 + m.rng.IntN(20))
	}
}

// settleTier ends all jobs and holds the bucket against the state.
func (m *model) settleTier() {
	m.t.Helper()
	m.tier.drain()
	var files []uint64
	for _, n := range m.nodes {
		if isFile(n) {
			files = append(files, n.id)
		}
	}
	m.tier.sound(files...)
	m.t.Logf("%d files, the tier %v", len(files), m.tier.status())
	m.compare()
}

// bytesOf is what an extent maps its range to.
func (m *model) bytesOf(e *wire.Extent, objects []*wire.Object) []modelCell {
	cells := make([]modelCell, e.Length)
	from := m.staged[e.Stripe]
	if e.Object != 0 {
		at := slices.IndexFunc(objects, func(o *wire.Object) bool { return o.Id == e.Object })
		from = m.content[fmt.Sprintf("%x/%x", objects[at].Inode, objects[at].Generation)]
	}
	for b := range cells {
		if from != nil {
			cells[b] = from[e.StripeOffset+uint64(b)]
		} else {
			cells[b] = modelCell{e.Stripe, e.StripeOffset + uint64(b)}
		}
	}
	return cells
}

// makeExtents fills op with stripes and extents from offset at on: runs and
// gaps, several extents of one stripe.
func (m *model) makeExtents(c *client, op *wire.Commit, at uint64) {
	count := 1 + m.rng.IntN(4)
	if m.rng.IntN(5) == 0 {
		count = 60 + m.rng.IntN(60)
	}
	for range count {
		s := stripe(m.number(c), 1+m.rng.Uint64N(8), m.devices()...)
		op.Stripes = append(op.Stripes, s)
		for from := uint64(0); from < s.Length; {
			length := 1 + m.rng.Uint64N(s.Length-from)
			if m.rng.IntN(4) == 0 {
				at += m.rng.Uint64N(6)
			}
			op.Extents = append(op.Extents, extent(at, length, s.Id, from))
			at, from = at+length, from+length
		}
		if len(op.Extents) > 240 {
			break
		}
	}
}

func (m *model) devices() []uint32 {
	n := []int{1, 2, 3, 6}[m.rng.IntN(4)]
	var out []uint32
	for _, d := range m.rng.Perm(7)[:n] {
		out = append(out, uint32(d+1))
	}
	return out
}

func (n *modelNode) lay(op *wire.Commit) {
	base := 0
	switch op.Mode {
	case wire.CommitMode_COMMIT_MODE_REPLACE:
		n.cells = nil
	case wire.CommitMode_COMMIT_MODE_APPEND:
		base = len(n.cells)
	}
	n.cells = slices.Clone(n.cells)
	for _, e := range op.Extents {
		from := base + int(e.Offset)
		n.resize(max(len(n.cells), from+int(e.Length)))
		for b := range int(e.Length) {
			n.cells[from+b] = modelCell{e.Stripe, e.StripeOffset + uint64(b)}
		}
	}
}

// stepSession ends a session, by itself or by expiry, and opens another.
func (m *model) stepSession() {
	at := m.rng.IntN(len(m.clients))
	c := m.clients[at]
	if m.rng.IntN(2) == 0 {
		m.expect(m.replicate(c, c.request(&wire.MetaRequest{Op: &wire.MetaRequest_CloseSession{CloseSession: &wire.CloseSession{}}})), "ok", "close")
	} else {
		m.expect(m.applyBoth(&statepb.Command{Op: &statepb.Command_ExpireSessions{ExpireSessions: &statepb.ExpireSessions{Sessions: []uint64{c.id}}}}), "ok", "expire")
	}
	for _, n := range slices.Clone(m.nodes) {
		if n.owner == c {
			m.gone(n)
		}
	}
	delete(m.grants, c)
	resp := m.replicate(c, c.request(&wire.MetaRequest{Op: &wire.MetaRequest_Create{Create: &wire.Create{Parent: m.root.id, Name: "x", Type: wire.FileType_FILE_TYPE_REGULAR}}}))
	m.expect(resp, "session expired", "create in a dead session")
	nonce := make([]byte, 16)
	m.rng.Uint64()
	for i := range nonce {
		nonce[i] = byte(m.rng.Uint32())
	}
	open := m.replicate(c, &wire.MetaRequest{Op: &wire.MetaRequest_OpenSession{OpenSession: &wire.OpenSession{Node: c.node, Scope: "/", Nonce: nonce}}})
	m.expect(open, "ok", "open")
	m.clients[at] = &client{bench: m.bench, id: open.GetSession().GetSession(), root: open.GetSession().GetRoot()}
}

// runJobs carries the leader's jobs some way.
func (m *model) runJobs() {
	jobs, err := m.m.PendingJobs(m.kv, []wire.JobKind{wire.JobKind_JOB_KIND_REMOVE_TREE, wire.JobKind_JOB_KIND_DROP_TABLES, wire.JobKind_JOB_KIND_RECOUNT}, 100)
	if err != nil {
		m.t.Fatal(err)
	}
	for _, j := range jobs {
		m.expect(m.applyBoth(&statepb.Command{Op: &statepb.Command_RunJob{RunJob: &statepb.RunJob{Id: j.Id, Limit: uint32(1 + m.rng.IntN(200))}}}), "ok", "run job")
	}
}

// compare holds the whole state against the model and the replica.
func (m *model) compare() {
	m.t.Helper()
	m.check()
	if d := statetest.Diff(m.own(), m.replica); d != "" {
		m.t.Fatalf("replicas differ: %s", d)
	}
	c := m.clients[0]
	m.compareDir(c, m.root)
	m.compareUsage(c)
	m.comparePolicies(c)
	for _, n := range m.nodes {
		if n.owner != nil && isFile(n) {
			m.compareFile(c, n)
		}
		m.compareXattrs(c, n)
		a := c.attr(n.id)
		if attrOf(a) != n.attr {
			m.t.Fatalf("%x has %+v, want %+v", n.id, attrOf(a), n.attr)
		}
		m.compareLease(c, a)
	}
}

func (m *model) compareDir(c *client, n *modelNode) {
	m.t.Helper()
	var names []string
	after := ""
	for {
		r := m.ok(c.read(&wire.MetaRequest{Op: &wire.MetaRequest_ReadDir{ReadDir: &wire.ReadDir{Inode: n.id, After: after, Limit: 3}}})).GetReadDir()
		for _, e := range r.GetEntries() {
			names = append(names, e.Name)
			child := n.children[e.Name]
			if child == nil || child.id != e.Attr.Inode || child.typ != e.Attr.Type || child.target != e.Attr.Target ||
				(!child.linked && e.Attr.Parent != n.id) || (!isDir(child) && (int(e.Attr.Nlink) < child.names || (!child.linked && int(e.Attr.Nlink) != child.names))) {
				m.t.Fatalf("entry %q is %v, want %+v", e.Name, e.Attr, child)
			}
			after = e.Name
		}
		if !r.GetMore() {
			break
		}
	}
	if len(names) != len(n.children) || !sort.StringsAreSorted(names) {
		m.t.Fatalf("directory has %q, want %d entries", names, len(n.children))
	}
	for _, name := range names {
		switch child := n.children[name]; {
		case isDir(child):
			m.compareDir(c, child)
		case isFile(child):
			m.compareFile(c, child)
		}
	}
}

func (m *model) compareFile(c *client, n *modelNode) {
	m.t.Helper()
	have := make([]modelCell, len(n.cells))
	limit := uint32(1 + m.rng.IntN(40))
	for off := uint64(0); ; {
		r := m.ok(c.extents(n.id, off, limit)).GetExtents()
		if r.GetAttr().GetSize() != uint64(len(n.cells)) {
			m.t.Fatalf("file %x has %d bytes, want %d", n.id, r.GetAttr().GetSize(), len(n.cells))
		}
		for _, e := range r.GetExtents() {
			copy(have[e.Offset:], m.bytesOf(e, r.GetObjects()))
			off = e.Offset + e.Length
		}
		if !r.GetMore() {
			break
		}
	}
	if !slices.Equal(have, n.cells) {
		m.t.Fatalf("file %x: content differs", n.id)
	}
}
