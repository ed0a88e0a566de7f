package leases_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/integration/incluster"
	"github.com/morainefs/moraine/internal/testseed"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// kind is the kind of a request for the cache.
func kind(req *wire.MetaRequest) string {
	switch op := req.Op.(type) {
	case *wire.MetaRequest_Leases:
		switch {
		case op.Leases.Begin:
			return "begin"
		case op.Leases.Renew:
			return "renew"
		}
		return "poll"
	case *wire.MetaRequest_Walk, *wire.MetaRequest_ReadDir, *wire.MetaRequest_GetAttr:
		return "read"
	case *wire.MetaRequest_Create, *wire.MetaRequest_Remove, *wire.MetaRequest_Rename:
		return "change"
	}
	return ""
}

var errLost = &moraine.Error{Op: "test", Kind: moraine.Unavailable, Err: errors.New("lost")}

// wrongs are the faults of one request.
var wrongs = map[string]func(ctx context.Context, do func(context.Context) (*wire.MetaResponse, error)) (*wire.MetaResponse, error){
	"request lost": func(context.Context, func(context.Context) (*wire.MetaResponse, error)) (*wire.MetaResponse, error) {
		return nil, errLost
	},
	"reply lost": func(ctx context.Context, do func(context.Context) (*wire.MetaResponse, error)) (*wire.MetaResponse, error) {
		if _, err := do(ctx); err != nil {
			return nil, err
		}
		return nil, errLost
	},
	"repeated": func(ctx context.Context, do func(context.Context) (*wire.MetaResponse, error)) (*wire.MetaResponse, error) {
		if resp, err := do(ctx); err != nil {
			return resp, err
		}
		return do(ctx)
	},
	"repeated late": func(ctx context.Context, do func(context.Context) (*wire.MetaResponse, error)) (*wire.MetaResponse, error) {
		resp, err := do(ctx)
		go func() {
			time.Sleep(700 * time.Millisecond)
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
			defer cancel()
			_, _ = do(ctx)
		}()
		return resp, err
	},
	"reply late": func(ctx context.Context, do func(context.Context) (*wire.MetaResponse, error)) (*wire.MetaResponse, error) {
		resp, err := do(ctx)
		select {
		case <-time.After(800 * time.Millisecond):
		case <-ctx.Done():
			return nil, errLost
		}
		return resp, err
	},
	"a sleep past the leases": func(ctx context.Context, do func(context.Context) (*wire.MetaResponse, error)) (*wire.MetaResponse, error) {
		resp, err := do(ctx)
		select {
		case <-time.After(4 * time.Second):
		case <-ctx.Done():
			return nil, errLost
		}
		return resp, err
	},
}

// strike makes the nth request of a kind of a client fail.
type strike struct {
	step  string
	nth   int
	wrong func(ctx context.Context, do func(context.Context) (*wire.MetaResponse, error)) (*wire.MetaResponse, error)

	mu  sync.Mutex
	met int
	hit bool
}

func (s *strike) over(d transport.Dialer) transport.Dialer {
	return incluster.Through(d, func(ctx context.Context, m transport.Metadata, req *wire.MetaRequest) (*wire.MetaResponse, error) {
		do := func(ctx context.Context) (*wire.MetaResponse, error) { return m.Do(ctx, req) }
		if s.meets(req) {
			return s.wrong(ctx, do)
		}
		return do(ctx)
	})
}

// meets reports whether this request is the one that fails.
func (s *strike) meets(req *wire.MetaRequest) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hit || kind(req) != s.step {
		return false
	}
	s.met++
	s.hit = s.met == s.nth
	return s.hit
}

func (s *strike) struck() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hit
}

// TestLeaseFaults makes each step of a caching client's protocol fail in each way.
// It checks whether the client ever sees an outdated state, or misses its own
// changes.
func TestLeaseFaults(t *testing.T) {
	runs := testseed.Sample(t, 6)
	for _, step := range []string{"begin", "renew", "poll", "read", "change"} {
		at := []int{2}
		switch {
		case testseed.Long():
			at = []int{1, 2, 4}
		case step == "begin":
			at = []int{1, 2} // the first, and one to a new leader
		}
		for name, wrong := range wrongs {
			for _, nth := range at {
				if !runs() {
					continue
				}
				t.Run(fmt.Sprintf("%s %d %s", step, nth, name), func(t *testing.T) {
					inCluster(t, 1, func(ctx context.Context, c *incluster.Cluster) {
						s := &strike{step: step, nth: nth, wrong: wrong}
						w := open(t, ctx, c, "w", client.Config{})
						defer w.Close()
						r, err := c.ClientOver(ctx, "r", cached, s.over)
						require.NoError(t, err)
						defer r.Close()
						_, err = w.Mkdir(ctx, "d", 0)
						require.NoError(t, err)
						leaseScript(t, ctx, c, w, r, s)
						time.Sleep(2 * time.Second) // for late messages
					})
				})
			}
		}
	}
}

// leaseScript makes w and r change a directory in turn, until some rounds after the
// fault of r; r reads before and after. A client whose leader lives begins once: if
// the fault is of a later beginning, leaders die meanwhile.
func leaseScript(t *testing.T, ctx context.Context, c *incluster.Cluster, w, r *incluster.Client, s *strike) {
	killed := ""
	revive := func() {
		if killed != "" {
			require.NoError(t, c.Restart(killed))
			killed = ""
		}
	}
	round := 0
	for after := 0; after < 4; round++ {
		require.Less(t, round, 60, "nothing was struck")
		if s.struck() {
			after++
		} else if s.step == "begin" && s.nth > 1 && round%6 == 3 {
			killed = c.Leader()
			require.NotEmpty(t, killed)
			c.Kill(killed)
		}
		leaseRound(t, ctx, w, r, round)
		if round%6 == 5 {
			revive()
		}
		time.Sleep(300 * time.Millisecond)
	}
	revive()
	t.Logf("%d rounds", round)
}

func leaseRound(t *testing.T, ctx context.Context, w, r *incluster.Client, i int) {
	is := func(path string, there bool) {
		t.Helper()
		_, err := r.Stat(ctx, path)
		if there {
			require.NoError(t, err)
		} else {
			require.ErrorIs(t, err, moraine.NotFound)
		}
		names := list(t, ctx, r, "d")
		if there {
			require.Contains(t, names, path[2:])
		} else {
			require.NotContains(t, names, path[2:])
		}
	}
	a, b := fmt.Sprintf("d/a%d", i), fmt.Sprintf("d/b%d", i)
	is(a, false)
	is(a, false)
	_, err := w.Mkdir(ctx, a, 0)
	require.NoError(t, err)
	is(a, true)
	is(b, false)
	_, err = r.Mkdir(ctx, b, 0)
	require.NoError(t, err)
	is(b, true)
	is(a, true)
	require.NoError(t, w.Remove(ctx, b))
	is(b, false)
	require.NoError(t, r.Rename(ctx, a, b, client.RenameOptions{}))
	is(a, false)
	is(b, true)
}

// held delays the replies to a client's requests of a kind while hold is not nil.
type held struct {
	kind string
	mu   sync.Mutex
	hold chan struct{}
}

func (h *held) over(d transport.Dialer) transport.Dialer {
	return incluster.Through(d, func(ctx context.Context, m transport.Metadata, req *wire.MetaRequest) (*wire.MetaResponse, error) {
		resp, err := m.Do(ctx, req)
		h.mu.Lock()
		hold := h.hold
		h.mu.Unlock()
		if hold != nil && kind(req) == h.kind {
			<-hold
		}
		return resp, err
	})
}

func (h *held) set(hold chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.hold = hold
}

// If an answer was in transit while its contents were recalled, or changed by the
// client itself, the client does not cache it.
func TestAGrantThatCrossesARecallIsVoid(t *testing.T) {
	for _, who := range []string{"another client", "the client itself"} {
		t.Run(who, func(t *testing.T) {
			inCluster(t, 1, func(ctx context.Context, c *incluster.Cluster) {
				w := open(t, ctx, c, "w", client.Config{})
				defer w.Close()
				h := held{kind: "read"}
				r, err := c.ClientOver(ctx, "r", cached, h.over)
				require.NoError(t, err)
				defer r.Close()
				dir, err := w.Mkdir(ctx, "d", 0)
				require.NoError(t, err)
				warm(t, ctx, r)
				hold := make(chan struct{})
				h.set(hold)
				looked := make(chan error, 1)
				go func() {
					_, err := r.Inodes().Lookup(ctx, dir.Inode(), "f")
					looked <- err
				}()
				time.Sleep(100 * time.Millisecond) // the answer is in transit
				changer := w.Client
				if who != "another client" {
					changer = r.Client
				}
				_, err = changer.Inodes().Create(ctx, dir.Inode(), "f", client.NodeOptions{Mode: 0o600})
				require.NoError(t, err)
				h.set(nil)
				close(hold)
				require.ErrorIs(t, <-looked, moraine.NotFound, "the look-up began before the change")
				_, err = r.Inodes().Lookup(ctx, dir.Inode(), "f")
				require.NoError(t, err, "a look-up after the change")
			})
		})
	}
}

// While a client's own change is running others may have seen it already: then the
// client sees it, too.
func TestAChangeUnderWayIsNotAnsweredFromBefore(t *testing.T) {
	inCluster(t, 1, func(ctx context.Context, c *incluster.Cluster) {
		w := open(t, ctx, c, "w", client.Config{})
		defer w.Close()
		h := held{kind: "change"}
		r, err := c.ClientOver(ctx, "r", cached, h.over)
		require.NoError(t, err)
		defer r.Close()
		dir, err := w.Mkdir(ctx, "d", 0)
		require.NoError(t, err)
		warm(t, ctx, r)
		for range 2 {
			_, err = r.Inodes().Lookup(ctx, dir.Inode(), "f")
			require.ErrorIs(t, err, moraine.NotFound)
		}
		hold := make(chan struct{})
		h.set(hold)
		made := make(chan error, 1)
		go func() {
			_, err := r.Inodes().Create(ctx, dir.Inode(), "f", client.NodeOptions{Mode: 0o600})
			made <- err
		}()
		for err = moraine.NotFound; err != nil; { // until another client sees it
			_, err = w.Inodes().Lookup(ctx, dir.Inode(), "f")
			time.Sleep(time.Millisecond)
		}
		_, err = r.Inodes().Lookup(ctx, dir.Inode(), "f")
		require.NoError(t, err, "a look-up after another client's that found it")
		require.NotEmpty(t, list(t, ctx, r, "d"))
		close(hold)
		require.NoError(t, <-made)
		_, err = r.Inodes().Lookup(ctx, dir.Inode(), "f")
		require.NoError(t, err)
	})
}
