package histories_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/morainefs/moraine/internal/testseed"
	"github.com/morainefs/moraine/transport/wire"
)

// counts is how often each verb succeeded, in some histories.
type counts [verbs]int

func (c *counts) add(h *history) {
	for _, p := range h.arenas {
		for _, op := range p.ops {
			if out := op.Output.(output); out.err == "" && !out.unknown {
				c[op.Input.(input).verb]++
			}
		}
	}
}

// leastOfVerb says that one operation of so many, or more, is one of each verb that
// succeeded: else the histories show nothing of it.
const leastOfVerb = 10_000

func (c *counts) require(t *testing.T, ops int) {
	t.Helper()
	for v, n := range c {
		require.GreaterOrEqual(t, n*leastOfVerb, ops, "of %d operations %d were a %s that succeeded", ops, n, verbNames[v])
	}
}

func (c counts) String() string {
	text := ""
	for v, n := range c {
		text += fmt.Sprintf("%s %d ", verbNames[v], n)
	}
	return text
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

// replacesAll is the mutant of saves that replaces what was not to be replaced.
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

// oldTargets is the mutant of symbolic links: a look-up answers what the first link of
// that name, in whichever directory, stood for.
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

// partsStay is the mutant of concatenations: the directory that goes with one goes
// after it.
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
	time.Sleep(20 * time.Millisecond)
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

// TestBrokenServicesAreCaught holds the checker against a service that does one
// operation otherwise than it promises: it finds each out in one of a few histories
// in which nothing else goes wrong.
func TestBrokenServicesAreCaught(t *testing.T) {
	first := testseed.From(t, 1)
	for name, mutant := range map[string]func(service) service{
		"a file that has its name before its content":       func(s service) service { return namesFirst{s} },
		"a save that replaces what it must not":             func(s service) service { return replacesAll{s} },
		"a concatenation whose parts go after it":           func(s service) service { return partsStay{s} },
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
