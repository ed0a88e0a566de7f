package state_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/morainefs/moraine/internal/testseed"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	flushJob = wire.JobKind_JOB_KIND_FLUSH
	stageJob = wire.JobKind_JOB_KIND_STAGE
	evictJob = wire.JobKind_JOB_KIND_EVICT
)

// scenario queues jobs and checks the result.
type scenario struct {
	name string
	run  func(y *tier) (files []uint64)
	then func(y *tier, files []uint64) string // says what is wrong
}

func (y *tier) state(f uint64) string {
	a := y.c.attr(f)
	return fmt.Sprintf("clean %t evicted %t size %d", a.Clean, a.Evicted, a.Size)
}

// all checks that every file is in the wanted state.
func all(want string) func(*tier, []uint64) string {
	return func(y *tier, files []uint64) string {
		for _, f := range files {
			if have := y.state(f); have != want {
				return have + ", want " + want
			}
		}
		return ""
	}
}

var scenarios = []scenario{
	{"flush", func(y *tier) []uint64 {
		f := y.c.mkfile(y.c.root, "f")
		y.write(f, 10)
		y.queue(flushJob, f)
		return []uint64{f}
	}, all("clean true evicted false size 10")},
	{"flush of an empty file", func(y *tier) []uint64 {
		f := y.c.mkfile(y.c.root, "f")
		y.queue(flushJob, f)
		return []uint64{f}
	}, all("clean true evicted false size 0")},
	{"flush again", func(y *tier) []uint64 {
		f := y.c.mkfile(y.c.root, "f")
		y.write(f, 10)
		y.queue(flushJob, f)
		y.quiet()
		y.write(f, 10)
		y.queue(flushJob, f)
		return []uint64{f}
	}, all("clean true evicted false size 20")},
	{"flush after a rename", func(y *tier) []uint64 {
		f := y.c.mkfile(y.c.root, "f")
		y.write(f, 10)
		y.queue(flushJob, f)
		y.quiet()
		y.ok(y.c.do(&wire.MetaRequest{Op: &wire.MetaRequest_Rename{Rename: &wire.Rename{Parent: y.c.root, Name: "f", NewParent: y.c.root, NewName: "g"}}}))
		y.write(f, 10)
		y.queue(flushJob, f)
		return []uint64{f}
	}, all("clean true evicted false size 20")},
	{"evict", func(y *tier) []uint64 {
		f := y.c.mkfile(y.c.root, "f")
		y.write(f, 10)
		y.queue(flushJob, f)
		y.quiet()
		y.queue(evictJob, f)
		return []uint64{f}
	}, all("clean true evicted true size 10")},
	{"stage", func(y *tier) []uint64 {
		f := y.c.mkfile(y.c.root, "f")
		y.write(f, 10)
		y.queue(flushJob, f)
		y.quiet()
		y.queue(evictJob, f)
		y.quiet()
		y.queue(stageJob, f)
		return []uint64{f}
	}, all("clean true evicted false size 10")},
	{"delete", func(y *tier) []uint64 {
		f := y.c.mkfile(y.c.root, "f")
		y.write(f, 10)
		y.queue(flushJob, f)
		y.quiet()
		y.unlink("f")
		return nil
	}, func(y *tier, _ []uint64) string {
		if len(y.s.objects) > 0 {
			return fmt.Sprint("the store still has ", y.s.objects)
		}
		return ""
	}},
	{"delete, and a new file at the path", func(y *tier) []uint64 {
		f := y.c.mkfile(y.c.root, "f")
		y.write(f, 10)
		y.queue(flushJob, f)
		y.quiet()
		y.unlink("f")
		g := y.c.mkfile(y.c.root, "f")
		y.write(g, 7)
		y.queue(flushJob, g)
		return []uint64{g}
	}, all("clean true evicted false size 7")},
	{"keep what a clone reads", func(y *tier) []uint64 {
		f, g := y.c.mkfile(y.c.root, "f"), y.c.mkfile(y.c.root, "g")
		y.write(f, 10)
		y.queue(flushJob, f)
		y.quiet()
		y.queue(evictJob, f)
		y.quiet()
		y.ok(y.c.clone(&wire.Clone{Inode: g, Mode: wire.CommitMode_COMMIT_MODE_REPLACE, Ranges: []*wire.CloneRange{{Inode: f, Offset: 2, Length: 5}}}))
		y.replace(f, 3)
		y.queue(flushJob, f)
		return []uint64{f, g}
	}, func(y *tier, files []uint64) string {
		if have := y.state(files[0]); have != "clean true evicted false size 3" {
			return have
		}
		if have := y.state(files[1]); have != "clean false evicted true size 5" {
			return have
		}
		return ""
	}},
	{"keep what the file itself still reads", func(y *tier) []uint64 {
		f := y.c.mkfile(y.c.root, "f")
		y.write(f, 10)
		y.queue(flushJob, f)
		y.quiet()
		y.queue(evictJob, f)
		y.quiet()
		y.write(f, 4)
		y.queue(flushJob, f)
		return []uint64{f}
	}, all("clean true evicted true size 14")},
	{"keep what was renamed away", func(y *tier) []uint64 {
		f := y.c.mkfile(y.c.root, "f")
		y.write(f, 10)
		y.queue(flushJob, f)
		y.quiet()
		y.ok(y.c.do(&wire.MetaRequest{Op: &wire.MetaRequest_Rename{Rename: &wire.Rename{Parent: y.c.root, Name: "f", NewParent: y.c.root, NewName: "g"}}}))
		g := y.c.mkfile(y.c.root, "f")
		y.write(g, 10)
		y.queue(flushJob, g)
		return []uint64{f, g}
	}, all("clean true evicted false size 10")},
	{"a tree", func(y *tier) []uint64 {
		d := y.c.mkdir(y.c.root, "d")
		f, g := y.c.mkfile(d, "f"), y.c.mkfile(y.c.mkdir(d, "e"), "g")
		y.write(f, 10)
		y.write(g, 10)
		y.queue(flushJob, d)
		y.runTrees()
		return []uint64{f, g}
	}, all("clean true evicted false size 10")},
}

// Whatever happens to a file or its job while the mover that works on it is dead, the store has no
// object or upload unknown to the state.
func TestTierFaultsMeanwhile(t *testing.T) {
	removeAll := func(y *tier) {
		for _, e := range y.ok(y.c.read(&wire.MetaRequest{Op: &wire.MetaRequest_ReadDir{ReadDir: &wire.ReadDir{Inode: y.c.root}}})).GetReadDir().GetEntries() {
			if e.Attr.Type == wire.FileType_FILE_TYPE_DIRECTORY {
				y.ok(y.c.do(&wire.MetaRequest{Op: &wire.MetaRequest_RemoveTree{RemoveTree: &wire.RemoveTree{Parent: y.c.root, Name: e.Name}}}))
			} else {
				y.unlink(e.Name)
			}
		}
	}
	cancelAll := func(y *tier) {
		for _, j := range y.ok(y.c.read(&wire.MetaRequest{Op: &wire.MetaRequest_ListJobs{ListJobs: &wire.ListJobs{}}})).GetJobs().GetJobs() {
			if j.Kind != wire.JobKind_JOB_KIND_REMOVE_TREE && j.Kind != wire.JobKind_JOB_KIND_DELETE_OBJECT {
				y.ok(y.as("a1", "admin", &wire.MetaRequest{Op: &wire.MetaRequest_CancelJob{CancelJob: &wire.CancelJob{Id: j.Id}}}))
			}
		}
	}
	changeAll := func(y *tier) {
		for _, e := range y.ok(y.c.read(&wire.MetaRequest{Op: &wire.MetaRequest_ReadDir{ReadDir: &wire.ReadDir{Inode: y.c.root}}})).GetReadDir().GetEntries() {
			if e.Attr.Type == wire.FileType_FILE_TYPE_REGULAR {
				y.rename(y.c.root, e.Name, y.c.root, e.Name+"-moved")
				y.write(e.Attr.Inode, 5)
			}
		}
	}
	long, start := testseed.Long(), int(testseed.First(t)%6)
	for i, mean := range []struct {
		what string
		do   func(*tier)
	}{{"removed", removeAll}, {"canceled", cancelAll}, {"changed", changeAll}} {
		for _, sc := range scenarios {
			for _, how := range []string{"before", "after", "late"} {
				// A stop before an operation equals a stop after the previous one, and only copies
				// and deletes can be late.
				few := how == "before" || how == "late" && !strings.Contains(sc.name, "keep") && !strings.Contains(sc.name, "delete")
				if few && !long {
					continue
				}
				first, step := 0, 1
				if !long { // every sixth operation, others for each
					first, step = (start+2*i+len(how))%6, 6
				}
				t.Run(mean.what+"/"+sc.name+"/"+how, func(t *testing.T) {
					t.Parallel()
					for at := first; ; at += step {
						y := newTier(t)
						y.crash = &crash{at: at, how: how}
						y.meanwhile = func() { mean.do(y) }
						files := sc.run(y)
						y.drain()
						if y.crash.hit == "" {
							break
						}
						if mean.what == "removed" {
							removeAll(y)
							y.drain()
							if files = nil; len(y.s.objects) != 0 {
								t.Errorf("the store still has %v", y.s.objects)
							}
						}
						y.sound(files...)
						if t.Failed() {
							t.Fatalf("stopped %s operation %d, %q", how, at, y.crash.hit)
						}
					}
				})
			}
		}
	}
}

func (y *tier) unlink(name string) {
	y.t.Helper()
	y.ok(y.c.do(&wire.MetaRequest{Op: &wire.MetaRequest_Remove{Remove: &wire.Remove{Parent: y.c.root, Name: name}}}))
}

// Each protocol of the object tier is stopped before and after each operation, with the request to
// the store on its way, and with each operation done twice. The successor completes it, the state
// refuses the former holder, and no unknown upload or object is left.
func TestTierFaults(t *testing.T) {
	first, step := 0, 1
	if !testseed.Long() { // every fourth operation, others for each
		first, step = int(testseed.First(t)%4), 4
	}
	for _, sc := range scenarios {
		for _, how := range []string{"before", "after", "late", "twice"} {
			at := first % step
			first++
			t.Run(sc.name+"/"+how, func(t *testing.T) {
				t.Parallel()
				for ; ; at += step {
					y := newTier(t)
					y.crash = &crash{at: at, how: how}
					files := sc.run(y)
					y.drain()
					if y.crash.hit == "" {
						if at < 2 {
							t.Errorf("only %d operations", at)
						}
						break
					}
					y.sound(files...)
					if wrong := sc.then(y, files); wrong != "" {
						t.Errorf("%s", wrong)
					}
					if t.Failed() {
						t.Fatalf("stopped %s operation %d, %q", how, at, y.crash.hit)
					}
				}
			})
		}
	}
}
