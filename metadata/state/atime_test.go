package state_test

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/morainefs/moraine/metadata/state"
	"github.com/morainefs/moraine/transport/wire"
)

func raiseAtimes(reads ...*wire.FileRead) *wire.MetaRequest {
	return &wire.MetaRequest{Op: &wire.MetaRequest_RaiseAtimes{RaiseAtimes: &wire.RaiseAtimes{Reads: reads}}}
}

// setTimes sets the times of a file that programs can set.
func (c *client) setTimes(inode uint64, atime, mtime int64) {
	c.t.Helper()
	c.ok(c.do(&wire.MetaRequest{Op: &wire.MetaRequest_SetAttr{SetAttr: &wire.SetAttr{Inode: inode, Atime: atime, Mtime: mtime,
		Valid: uint32(wire.SetAttrField_SET_ATTR_ATIME | wire.SetAttrField_SET_ATTR_MTIME)}}}))
}

// TestRaiseAtimes: a read raises the atime as relatime says, and nothing else: no other attribute changes,
// no cache lease is recalled, and nobody waits.
func TestRaiseAtimes(t *testing.T) {
	const future = int64(1) << 62
	for name, c := range map[string]struct {
		atime, mtime int64 // before; the ctime is that of the command which sets them
		read         int64 // after the ctime
		want         func(atime, ctime, now int64) int64
	}{
		"the first read since a change":  {-5, 3, 100, func(_, ctime, _ int64) int64 { return ctime + 100 }},
		"never lowers":                   {future, 3, 100, func(atime, _, _ int64) int64 { return atime }},
		"a read before the last change":  {-5, 3, -100, func(_, ctime, _ int64) int64 { return ctime - 100 }},
		"read since":                     {future - 1, 3, 1 << 60, func(atime, _, _ int64) int64 { return atime }},
		"a read in the future":           {-5, 3, future, func(_, _, now int64) int64 { return now }},
		"changed in the future":          {-5, future, 100, func(_, ctime, _ int64) int64 { return ctime + 100 }},
		"a read before the epoch":        {-5, 3, -future, func(atime, _, _ int64) int64 { return atime }},
		"the same read once more":        {-5, 3, 0, func(_, ctime, _ int64) int64 { return ctime }},
		"the time of the command itself": {-5, 3, 1_000_000, func(_, ctime, now int64) int64 { return min(ctime+1_000_000, now) }},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			a := b.open(nil)
			f := a.mkfile(a.root, "f")
			a.setTimes(f, c.atime, c.mtime)
			before := a.attr(f)
			req := raiseAtimes(&wire.FileRead{Inode: f, Atime: before.Ctime + c.read}, &wire.FileRead{Inode: f, Atime: before.Ctime + c.read})
			res := a.send(a.request(req))
			b.ok(res.Response)
			holdQuiet(t, res)
			want := proto.CloneOf(before)
			want.Atime = c.want(before.Atime, before.Ctime, b.wall)
			if got := a.attr(f); !proto.Equal(got, want) {
				t.Fatalf("the attributes are %v, want %v", got, want)
			}
			b.check()
			b.replays()
		})
	}
}

// holdQuiet fails if a command changes what caches may have, or would wait for a delegation.
func holdQuiet(t *testing.T, res state.Result) {
	t.Helper()
	if len(res.Touched) > 0 || len(res.Met) > 0 {
		t.Errorf("it touched %v and met %v", res.Touched, res.Met)
	}
}

// TestRaiseAtimesSkips: a request raises the atime of what it may, and skips the rest.
func TestRaiseAtimesSkips(t *testing.T) {
	b := newBench(t)
	all := b.open(nil)
	mine, theirs := all.mkdir(all.root, "mine"), all.mkdir(all.root, "theirs")
	confined := b.open(func(op *wire.OpenSession) { op.Scope = "/mine" })
	reader := b.open(func(op *wire.OpenSession) { op.ReadOnly = true })
	owner := b.open(leased)
	file, outside, dir := all.mkfile(mine, "f"), all.mkfile(theirs, "f"), all.mkdir(mine, "d")
	inodes := []uint64{file, outside, dir, 1 << 40, 0}
	raise := func(c *client) state.Result {
		var reads []*wire.FileRead
		for _, i := range inodes {
			reads = append(reads, &wire.FileRead{Inode: i, Atime: b.wall})
		}
		return c.send(c.request(raiseAtimes(reads...)))
	}
	raised := func(inode uint64) bool { a := all.attr(inode); return a.Atime > a.Ctime }
	if got := kind(raise(reader).Response); got != "read only" || raised(file) {
		t.Errorf("a session that may only read: %s", got)
	}
	b.ok(raise(confined).Response)
	if !raised(file) || raised(outside) || raised(dir) {
		t.Errorf("raised %v, outside %v, of a directory %v", raised(file), raised(outside), raised(dir))
	}
	if got := owner.delegate(theirs, 10); !got.Delegated {
		t.Fatal(got)
	}
	res := raise(all)
	b.ok(res.Response)
	holdQuiet(t, res)
	if raise(owner); !raised(outside) { // attr has all meet the delegation otherwise
		t.Error("the atime below a delegated directory stayed")
	}
	inodes = make([]uint64, wire.MaxRaiseAtimes+1)
	if got := kind(raise(all).Response); got != "too large" {
		t.Errorf("%d files: %s", len(inodes), got)
	}
	inodes = inodes[1:]
	b.ok(raise(all).Response)
	b.check()
}

// TestRaiseAtimesOfACheckpoint: files of a checkpoint keep the atime that they were sealed with.
func TestRaiseAtimesOfACheckpoint(t *testing.T) {
	b := newSealed(t)
	before := b.picture()
	for _, inode := range []uint64{b.dir, b.part, b.index} {
		b.ok(b.c.do(raiseAtimes(&wire.FileRead{Inode: inode, Atime: b.wall + 1})))
	}
	if after := b.picture(); after != before {
		t.Errorf("a read changed a checkpoint: before\n%s\nafter\n%s", before, after)
	}
}
