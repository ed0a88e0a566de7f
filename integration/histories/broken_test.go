package histories_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/testseed"
	"github.com/morainefs/moraine/transport/wire"
)

// counts is how often each verb succeeded in some histories, and how often on a
// child of a directory. It also counts directories that were not removed or
// replaced because they had children, and descriptions of files without a name.
type counts struct {
	all, inside [verbs]int
	full, kept  int
}

func (c *counts) add(h *history) {
	for _, p := range h.arenas {
		for _, op := range p.ops {
			in, out := op.Input.(input), op.Output.(output)
			if out.id != 0 && !out.dir && out.nlink == 0 && in.verb != unlink && in.verb != rmdir {
				c.kept++
			}
			switch {
			case out.err == notEmpty:
				c.full++
			case out.err != "" || out.unknown:
			case in.in != 0:
				c.inside[in.verb]++
				fallthrough
			default:
				c.all[in.verb]++
			}
		}
	}
}

// leastOfVerb: at least one operation in so many must be a success of each verb.
// Otherwise the histories do not test it.
const leastOfVerb = 20_000

func (c *counts) require(t *testing.T, ops int) {
	t.Helper()
	for v, n := range c.all {
		require.GreaterOrEqual(t, n*leastOfVerb, ops, "of %d operations %d were a %s that succeeded", ops, n, verbNames[v])
	}
	for what, of := range map[string][]verb{"looks": {lookup, readdir}, "new names": {create, symlink, save, concat}, "names that went": {unlink, rename}} {
		n := 0
		for _, v := range of {
			n += c.inside[v]
		}
		require.GreaterOrEqual(t, n*leastOfVerb, ops, "of %d operations %d were %s in a directory", ops, n, what)
	}
	require.GreaterOrEqual(t, c.full*leastOfVerb, ops, "of %d operations %d met a directory that was not empty", ops, c.full)
	require.GreaterOrEqual(t, c.kept*leastOfVerb, ops, "of %d operations %d were answered of a file without a name", ops, c.kept)
}

func (c counts) String() string {
	text := ""
	for v, n := range c.all {
		text += fmt.Sprintf("%s %d (%d in directories) ", verbNames[v], n, c.inside[v])
	}
	return text + fmt.Sprintf("met not empty %d, without a name %d", c.full, c.kept)
}

// namesFirst is the mutant of saves: the file has its name before its content.
type namesFirst struct{ service }

// Meta implements service.
func (s namesFirst) Meta(ctx context.Context, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	if req.GetCommit().GetLink() == nil {
		return s.service.Meta(ctx, req)
	}
	named := proto.CloneOf(req)
	named.GetCommit().Stripes, named.GetCommit().Extents = nil, nil
	if resp, err := s.service.Meta(ctx, named); err != nil {
		return resp, err
	}
	time.Sleep(20 * time.Millisecond)
	rest := proto.CloneOf(req)
	rest.GetCommit().Link = nil
	return s.service.Meta(ctx, rest)
}

// replacesAll is the mutant of saves that replaces what must not be replaced.
type replacesAll struct{ service }

// Meta implements service.
func (s replacesAll) Meta(ctx context.Context, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	for _, l := range []*wire.LinkTarget{req.GetCommit().GetLink(), req.GetClone().GetLink()} {
		if l != nil {
			l.Replace = true
		}
	}
	return s.service.Meta(ctx, req)
}

// oldTargets is the mutant of symbolic links: a look-up returns the target of the
// first link of that name, in any directory.
type oldTargets struct {
	service
	seen map[string]string
}

// Meta implements service.
func (s oldTargets) Meta(ctx context.Context, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	resp, err := s.service.Meta(ctx, req)
	l, a := req.GetLookup(), resp.GetEntry().GetAttr()
	if err != nil || l == nil || a.GetTarget() == "" {
		return resp, err
	}
	if old, ok := s.seen[l.GetName()]; ok {
		a.Target = old
	} else {
		s.seen[l.GetName()] = a.GetTarget()
	}
	return resp, nil
}

// partsStay is the mutant of concatenations: the consumed directory is removed
// after the concatenation.
type partsStay struct{ service }

// Meta implements service.
func (s partsStay) Meta(ctx context.Context, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	gone := req.GetConcat().GetConsume()
	if gone == 0 {
		return s.service.Meta(ctx, req)
	}
	dir, err := s.service.Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_GetAttr{GetAttr: &wire.GetAttr{Inode: gone}}})
	if err != nil {
		return s.service.Meta(ctx, req)
	}
	whole := proto.CloneOf(req)
	whole.GetConcat().Consume = 0
	resp, err := s.service.Meta(ctx, whole)
	if err != nil {
		return resp, err
	}
	time.Sleep(100 * time.Millisecond)
	parent := dir.GetEntry().GetAttr().GetParent()
	entries, err := s.service.Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_ReadDir{ReadDir: &wire.ReadDir{Inode: parent, Limit: 100}}})
	if err != nil {
		return resp, nil
	}
	for _, e := range entries.GetReadDir().GetEntries() {
		if e.GetAttr().GetInode() == gone {
			_, _ = s.service.Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_RemoveTree{RemoveTree: &wire.RemoveTree{Parent: parent, Name: e.GetName()}}})
		}
	}
	return resp, nil
}

// fileByFile is the mutant of removed trees: the contents of a tree are removed
// before it.
type fileByFile struct{ service }

// Meta implements service.
func (s fileByFile) Meta(ctx context.Context, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	tree := req.GetRemoveTree()
	if tree == nil {
		return s.service.Meta(ctx, req)
	}
	dir, err := s.service.Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_Lookup{Lookup: &wire.Lookup{Parent: tree.GetParent(), Name: tree.GetName()}}})
	if id := dir.GetEntry().GetAttr().GetInode(); err == nil {
		for _, name := range kids {
			_, _ = s.service.Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_Remove{Remove: &wire.Remove{Parent: id, Name: name}}})
			time.Sleep(20 * time.Millisecond)
		}
	}
	return s.service.Meta(ctx, req)
}

// removesFull is the mutant of removals that removes a directory with its contents.
type removesFull struct{ service }

// Meta implements service.
func (s removesFull) Meta(ctx context.Context, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	resp, err := s.service.Meta(ctx, req)
	if r := req.GetRemove(); r != nil && moraine.KindOf(err) == moraine.NotEmpty {
		return s.service.Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_RemoveTree{RemoveTree: &wire.RemoveTree{Parent: r.GetParent(), Name: r.GetName()}}})
	}
	return resp, err
}

// keepsNothing is the mutant of removals that lets a file die that must be kept.
type keepsNothing struct{ service }

// Meta implements service.
func (s keepsNothing) Meta(ctx context.Context, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	if r := req.GetRemove(); r != nil {
		r.Keep = false
	}
	return s.service.Meta(ctx, req)
}

// halfOwned is the mutant of changes of owners: it sets user and group in two
// steps.
type halfOwned struct{ service }

// Meta implements service.
func (s halfOwned) Meta(ctx context.Context, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	set, both := req.GetSetAttr(), uint32(wire.SetAttrField_SET_ATTR_UID|wire.SetAttrField_SET_ATTR_GID)
	if set.GetValid() != both {
		return s.service.Meta(ctx, req)
	}
	first := proto.CloneOf(req)
	first.GetSetAttr().Valid = uint32(wire.SetAttrField_SET_ATTR_UID)
	if resp, err := s.service.Meta(ctx, first); err != nil {
		return resp, err
	}
	time.Sleep(20 * time.Millisecond)
	set.Valid = uint32(wire.SetAttrField_SET_ATTR_GID)
	return s.service.Meta(ctx, req)
}

// TestBrokenServicesAreCaught runs the checker on a service that breaks the promise
// of one operation. It detects each in one of a few histories in which nothing else
// fails. Only the long form runs it.
func TestBrokenServicesAreCaught(t *testing.T) {
	testseed.OnlyLong(t)
	first := testseed.From(t, 1)
	for name, mutant := range map[string]func(service) service{
		"a file that has its name before its content":       func(s service) service { return namesFirst{s} },
		"a save that replaces what it must not":             func(s service) service { return replacesAll{s} },
		"a concatenation whose parts go after it":           func(s service) service { return partsStay{s} },
		"a tree that goes file by file":                     func(s service) service { return fileByFile{s} },
		"a removal of a directory that is not empty":        func(s service) service { return removesFull{s} },
		"a kept file that dies":                             func(s service) service { return keepsNothing{s} },
		"a clone of a tree that grows in sight":             func(s service) service { return growing{s} },
		"an owner that is set in two steps":                 func(s service) service { return halfOwned{s} },
		"a symbolic link that stands for what another does": func(s service) service { return oldTargets{s, map[string]string{}} },
	} {
		t.Run(name, func(t *testing.T) {
			for seed := first; seed < first+40; seed++ {
				o := options{seed: seed, clients: 8, arenas: 2, lasts: 3 * time.Second, calm: true, service: mutant}
				if r, _ := playOne(t, o).h.verdict(); r == porcupine.Illegal {
					t.Logf("found with seed %d, the %d. history", seed, seed-first+1)
					return
				}
			}
			t.Fatalf("nobody noticed, seeds %d to %d", first, first+39)
		})
	}
}
