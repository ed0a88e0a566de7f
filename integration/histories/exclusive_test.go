package histories_test

import (
	"context"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/morainefs/moraine/internal/testseed"
	"github.com/morainefs/moraine/metadata"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// Histories with clients that have exclusive leases, and answer creates before the
// service knows of them. If such a client is disconnected for the term of its
// leases, its unsent files do not exist for others. That is its promise
// (docs/semantics/leases.md), and no order explains it. So these histories have no
// faults of clients, and faults of servers are shorter than the term.

// exclusively is a history of that kind.
func exclusively(seed uint64, calm bool) options {
	return options{seed: seed, clients: 6, cached: 6, alone: 6, arenas: 6, lasts: 15 * time.Second, calm: calm, servers: !calm}
}

// leastMade: at least one operation in so many must make a file under an exclusive
// lease. Otherwise the histories do not test them.
const leastMade = 40

func TestExclusiveLeasesAreLinearizable(t *testing.T) {
	first := testseed.First(t)
	var made uint64
	var ops int
	for seed := first; seed < first+uint64(testseed.Runs(t, 2, 200)); seed++ {
		out := playOne(t, exclusively(seed, seed%2 == 0))
		made, ops = made+out.made, ops+out.ops
		r, at := out.h.verdict()
		if r == porcupine.Illegal {
			t.Fatalf("seed %d, arena %d: no order explains the answers; %d of %d files were lost; what went wrong: %v; see %s", seed, at, out.lost, out.made, out.did, out.h.show(t, at))
		}
		require.Equal(t, porcupine.Ok, r)
	}
	require.GreaterOrEqual(t, made*leastMade, uint64(ops), "of %d operations %d were files made under an exclusive lease", ops, made)
	t.Logf("%d operations, %d files made under exclusive leases", ops, made)
}

// holdsUnseen is the mutant of exclusive leases: a server whose reads do not see a
// lease, and so do not wait for its holder.
type holdsUnseen struct{ metadata.Store }

// View implements metadata.Store.
func (s holdsUnseen) View(fn func(r kvtx.Reader, applied uint64) error) error {
	return s.Store.View(func(r kvtx.Reader, applied uint64) error { return fn(withoutHolds{r}, applied) })
}

type withoutHolds struct{ kvtx.Reader }

// tabHold is the table of exclusive leases of docs/formats/metadata-keys.md.
const tabHold = 0x15

func (r withoutHolds) Get(key []byte) ([]byte, bool, error) {
	if len(key) > 2 && key[2] == tabHold {
		return nil, false, nil
	}
	return r.Reader.Get(key)
}

// givesBackFirst is the mutant of a holder: it returns a directory, and then still
// sends files that it had made there.
func givesBackFirst(ctx context.Context, m transport.Metadata, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	all := req.GetBatch().GetRequests()
	if len(all) < 2 || all[len(all)-1].GetEndHold() == nil {
		return m.Do(ctx, req)
	}
	part := func(requests []*wire.MetaRequest) ([]*wire.MetaResponse, error) {
		some := proto.CloneOf(req)
		some.GetBatch().Requests = requests
		resp, err := m.Do(ctx, some)
		return resp.GetBatch().GetResponses(), err
	}
	end, err := part(all[len(all)-1:])
	if err != nil {
		return nil, err
	}
	time.Sleep(200 * time.Millisecond)
	made, err := part(all[:len(all)-1])
	return &wire.MetaResponse{Result: &wire.MetaResponse_Batch{Batch: &wire.BatchReply{Responses: append(made, end...)}}}, err
}

// answersEarly is the mutant of the service's batches: they are answered before
// they are applied.
func answersEarly(ctx context.Context, m transport.Metadata, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	all := req.GetBatch().GetRequests()
	if len(all) == 0 || all[len(all)-1].GetEndHold() != nil {
		return m.Do(ctx, req)
	}
	go func() {
		time.Sleep(200 * time.Millisecond)
		_, _ = m.Do(context.WithoutCancel(ctx), req)
	}()
	early := make([]*wire.MetaResponse, len(all))
	for i := range early {
		early[i] = &wire.MetaResponse{}
	}
	return &wire.MetaResponse{Result: &wire.MetaResponse_Batch{Batch: &wire.BatchReply{Responses: early}}}, nil
}

// TestBrokenExclusiveLeasesAreCaught runs the checker on exclusive leases that are
// broken in one place. It detects each in one of a few histories. Only the long form
// runs it.
func TestBrokenExclusiveLeasesAreCaught(t *testing.T) {
	testseed.OnlyLong(t)
	const most = 200
	first := testseed.From(t, 1)
	for name, mutant := range map[string]func(o *options){
		"reads that do not wait for the holder": func(o *options) {
			o.store = func(_ string, s metadata.Store) metadata.Store { return holdsUnseen{s} }
		},
		"a holder that gives back before it sends":      func(o *options) { o.client = givesBackFirst },
		"a batch that is answered before it is applied": func(o *options) { o.client = answersEarly },
	} {
		t.Run(name, func(t *testing.T) {
			for seed := first; seed < first+most; seed++ {
				o := exclusively(seed, true)
				mutant(&o)
				if r, _ := playOne(t, o).h.verdict(); r == porcupine.Illegal {
					t.Logf("found with seed %d, the %d. history", seed, seed-first+1)
					return
				}
			}
			t.Fatalf("nobody noticed, seeds %d to %d", first, first+most-1)
		})
	}
}
