package state_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/morainefs/moraine/internal/testseed"
	"github.com/morainefs/moraine/metadata/state/names"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

// opener opens a session that may have files open.
func (b *bench) opener(scope string) *client {
	return b.open(func(op *wire.OpenSession) { op.Opens, op.Scope = true, scope })
}

func (c *client) keep(inodes ...uint64) []uint64 {
	c.t.Helper()
	return c.ok(c.do(&wire.MetaRequest{Op: &wire.MetaRequest_Keep{Keep: &wire.Keep{Inodes: inodes}}})).GetOrphans().GetInodes()
}

func (c *client) orphans(inodes ...uint64) []uint64 {
	c.t.Helper()
	return c.ok(c.read(&wire.MetaRequest{Op: &wire.MetaRequest_FindOrphans{FindOrphans: &wire.FindOrphans{Inodes: inodes}}})).GetOrphans().GetInodes()
}

func (c *client) unlink(parent uint64, name string, keep bool) {
	c.t.Helper()
	c.ok(c.do(&wire.MetaRequest{Op: &wire.MetaRequest_Remove{Remove: &wire.Remove{Parent: parent, Name: name, Keep: keep}}}))
}

// there reports whether the state has an inode.
func (c *client) there(inode uint64) bool {
	c.t.Helper()
	return kind(c.read(&wire.MetaRequest{Op: &wire.MetaRequest_GetAttr{GetAttr: &wire.GetAttr{Inode: inode}}})) == "ok"
}

// endLingers ends the lingering of all orphans, or of those up to a number.
func (b *bench) endLingers(upto uint64) {
	b.t.Helper()
	b.ok(b.apply(&statepb.Command{Op: &statepb.Command_EndLingers{EndLingers: &statepb.EndLingers{Upto: upto}}}).Response)
}

func (b *bench) expire(c *client) {
	b.t.Helper()
	b.ok(b.apply(&statepb.Command{Op: &statepb.Command_ExpireSessions{ExpireSessions: &statepb.ExpireSessions{Sessions: []uint64{c.id}}}}).Response)
}

const forEver = ^uint64(0)

func truncateTo(inode, size uint64) *wire.MetaRequest {
	return &wire.MetaRequest{Op: &wire.MetaRequest_SetAttr{SetAttr: &wire.SetAttr{Inode: inode, Size: size, Valid: uint32(wire.SetAttrField_SET_ATTR_SIZE)}}}
}

// TestOrphans: a file that loses its last name stays for the sessions that may have it open, and for
// nobody else. It counts nowhere.
func TestOrphans(t *testing.T) {
	b := newBench(t)
	plain := b.open(nil)
	file := plain.mkfile(plain.root, "f")
	plain.unlink(plain.root, "f", false)
	if plain.there(file) {
		t.Error("the file stayed, though no session may have files open")
	}
	mine, theirs := plain.mkdir(plain.root, "mine"), plain.mkdir(plain.root, "theirs")
	a, own, other := b.opener("/"), b.opener("/mine"), b.opener("/theirs")
	file = own.mkfile(mine, "f")
	plain.ok(plain.do(truncateTo(file, 1000)))
	empty := plain.usage(mine)[0]
	if empty != 1000 {
		t.Fatalf("the directory counts %d bytes", empty)
	}
	plain.unlink(mine, "f", false)
	b.check()
	if got := plain.usage(mine); got != [2]uint64{} {
		t.Errorf("the orphan counts: %v", got)
	}
	if attr := own.attr(file); attr.GetNlink() != 0 || attr.GetSize() != 1000 {
		t.Errorf("the orphan is %v", attr)
	}
	if other.there(file) || len(other.orphans(file)) > 0 || len(other.keep(file)) > 0 {
		t.Error("a session that is confined to another directory sees the orphan")
	}
	for _, c := range []*client{a, own} {
		if got := c.orphans(file, theirs, 1<<50); !slices.Equal(got, []uint64{file}) {
			t.Errorf("orphans: %x", got)
		}
		for range 2 { // the second request is a repetition
			if got := c.keep(file); !slices.Equal(got, []uint64{file}) {
				t.Errorf("kept: %x", got)
			}
		}
		if got := c.orphans(file); len(got) > 0 {
			t.Errorf("it finds what it keeps: %x", got)
		}
	}
	b.endLingers(forEver)
	b.check()
	for _, c := range []*client{a, own} {
		b.ok(c.do(truncateTo(file, 2000)))
	}
	if got := kind(plain.do(truncateTo(file, 3000))); got != "permission denied" {
		t.Errorf("a session that does not keep the orphan changes it: %s", got)
	}
	if got := kind(a.link(file, theirs, "again")); got != "not found" {
		t.Errorf("the orphan gets a name: %s", got)
	}
	b.ok(a.release(file))
	b.ok(a.release(file))
	b.check()
	if !own.there(file) {
		t.Fatal("the orphan is gone, though a session keeps it")
	}
	b.expire(own)
	b.check()
	if a.there(file) {
		t.Error("the orphan outlives the sessions that kept it")
	}
}

// TestOrphansOfATree: the files of a tree that is removed are orphans too.
func TestOrphansOfATree(t *testing.T) {
	b := newBench(t)
	c := b.opener("/")
	dir := c.mkdir(c.root, "dir")
	below := c.mkdir(dir, "below")
	file, kept := c.mkfile(below, "f"), c.mkfile(below, "kept")
	c.ok(c.do(&wire.MetaRequest{Op: &wire.MetaRequest_RemoveTree{RemoveTree: &wire.RemoveTree{Parent: c.root, Name: "dir"}}}))
	b.settleJobs()
	b.check()
	if got := c.keep(kept); len(got) != 1 {
		t.Fatal("a file of the tree cannot be kept")
	}
	b.endLingers(forEver)
	b.check()
	if c.there(file) || !c.there(kept) {
		t.Error("the wrong file of the tree is left")
	}
}

// orphanModel is what a state with orphans must have.
type orphanModel struct {
	*bench
	rng      *rand.Rand
	sessions []*client
	files    []*orphanFile
	lingers  []*orphanFile // in order
	made     int
}

type orphanFile struct {
	inode   uint64
	name    string // "": none
	lingers bool
	keptBy  []*client
}

// TestRandomOrphans: sessions create, replace, remove, keep and release files, and end. A file exists
// as long as it has a name, lingers, or a session keeps it.
func TestRandomOrphans(t *testing.T) {
	first, n := testseed.First(t), testseed.Runs(t, 4, 100)
	for seed := first; seed < first+uint64(n); seed++ {
		m := &orphanModel{bench: newBench(t), rng: rand.New(rand.NewPCG(seed, 1))}
		root := m.open(nil)
		for range 300 {
			m.step(root)
		}
		for _, c := range m.sessions {
			m.expire(c)
		}
		for n := len(m.lingers); n >= 0; n -= 100 {
			m.endLingers(forEver)
		}
		m.check()
		for _, f := range m.files {
			if f.name == "" && root.there(f.inode) {
				t.Fatalf("seed %d: inode %x is left", seed, f.inode)
			}
		}
	}
}

func (m *orphanModel) step(root *client) {
	if len(m.sessions) < 2 || m.rng.IntN(20) == 0 {
		m.sessions = append(m.sessions, m.opener("/"))
	}
	at := m.rng.IntN(len(m.sessions))
	c := m.sessions[at]
	switch op := m.rng.IntN(10); {
	case op < 4 || len(m.files) == 0:
		name := fmt.Sprint("f", m.made)
		m.made++
		m.files = append(m.files, &orphanFile{inode: c.mkfile(c.root, name), name: name})
	case op < 7:
		m.remove(c, m.files[m.rng.IntN(len(m.files))])
	case op == 7:
		m.keep(c, m.files[m.rng.IntN(len(m.files))])
	case op == 8:
		f := m.files[m.rng.IntN(len(m.files))]
		m.ok(c.release(f.inode))
		f.keptBy = slices.DeleteFunc(f.keptBy, func(o *client) bool { return o == c })
	case m.rng.IntN(3) == 0 && len(m.sessions) > 2:
		m.expire(c)
		m.sessions = slices.Delete(m.sessions, at, at+1)
		for _, f := range m.files {
			f.keptBy = slices.DeleteFunc(f.keptBy, func(o *client) bool { return o == c })
		}
	default:
		m.end()
	}
	if m.rng.IntN(10) == 0 {
		m.check()
	}
	for _, f := range m.files {
		if want := f.name != "" || f.lingers || len(f.keptBy) > 0; root.there(f.inode) != want {
			m.t.Fatalf("inode %x (%+v) exists: %t", f.inode, f, !want)
		}
	}
}

// remove takes the name of a file: by a removal, or by a rename over it.
func (m *orphanModel) remove(c *client, f *orphanFile) {
	if f.name == "" {
		return
	}
	keep := m.rng.IntN(3) == 0
	over := m.files[m.rng.IntN(len(m.files))]
	if over.name != "" && over != f && m.rng.IntN(2) == 0 {
		m.ok(c.do(&wire.MetaRequest{Op: &wire.MetaRequest_Rename{Rename: &wire.Rename{Parent: c.root, Name: over.name, NewParent: c.root, NewName: f.name, Keep: keep}}}))
		over.name = f.name
	} else {
		c.unlink(c.root, f.name, keep)
	}
	f.name, f.lingers = "", true
	m.lingers = append(m.lingers, f)
	if keep {
		f.keptBy = append(f.keptBy, c)
	}
}

func (m *orphanModel) keep(c *client, f *orphanFile) {
	may := f.name == "" && (f.lingers || len(f.keptBy) > 0)
	if got := c.keep(f.inode); len(got) > 0 != may {
		m.t.Fatalf("keep of inode %x (%+v): %x", f.inode, f, got)
	}
	if may && !slices.Contains(f.keptBy, c) {
		f.keptBy = append(f.keptBy, c)
	}
}

// end ends the lingering of some files.
func (m *orphanModel) end() {
	oldest, last, err := names.Lingers(m.m.View(m.store()))
	if err != nil || oldest == 0 {
		return
	}
	upto := oldest + m.rng.Uint64N(last-oldest+1)
	m.endLingers(upto)
	n := min(int(upto-oldest)+1, len(m.lingers), 128)
	for _, f := range m.lingers[:n] {
		f.lingers = false
	}
	m.lingers = m.lingers[n:]
}
