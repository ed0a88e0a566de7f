package metadata_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata"
	"github.com/morainefs/moraine/metadata/metadatatest"
	"github.com/morainefs/moraine/transport"
)

func TestWaitingCommandsShareAnEntry(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		const clients, each = 64, 10
		k := make([]*client, clients)
		for i := range k {
			k[i] = c.open(peer(transport.RoleClient, "c1"))
		}
		c.group.Fail(metadatatest.Faults{Slow: time.Millisecond})
		before := c.group.Entries()
		began := time.Now()
		var wg sync.WaitGroup
		for i := range k {
			wg.Go(func() {
				for n := range each {
					resp, err := k[i].do(mkdir(root, fmt.Sprintf("%d-%d", i, n)))
					if err != nil {
						t.Errorf("%d-%d: %v", i, n, err)
						return
					}
					if resp.GetEntry().GetAttr().GetInode() == 0 {
						t.Errorf("%d-%d was answered by %v", i, n, resp)
					}
				}
			})
		}
		wg.Wait()
		require.LessOrEqual(t, c.group.Entries()-before, clients*each/4, "entries for %d commands", clients*each)
		require.Less(t, time.Since(began), 100*time.Millisecond, "the entries must be in flight together")
	})
}

// together lets n clients make one directory each, the first slightly before the others, in a store
// whose entries take a second. It returns the number of entries and the time.
func together(t *testing.T, c *cluster, n int) (entries int, took time.Duration) {
	k := make([]*client, n)
	for i := range k {
		k[i] = c.open(peer(transport.RoleClient, "c1"))
	}
	c.group.Fail(metadatatest.Faults{Slow: time.Second})
	before := c.group.Entries()
	began := time.Now()
	var wg sync.WaitGroup
	for i := range k {
		wg.Go(func() {
			if _, err := k[i].do(mkdir(root, fmt.Sprint(i))); err != nil {
				t.Errorf("%d: %v", i, err)
			}
		})
		if i == 0 {
			synctest.Wait()
		}
	}
	wg.Wait()
	return c.group.Entries() - before, time.Since(began)
}

func TestAFewCommandsWaitForTheEntryInFlight(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		entries, took := together(t, c, 11)
		require.GreaterOrEqual(t, took, 2*time.Second)
		require.Less(t, took, 3*time.Second)
		require.LessOrEqual(t, entries, 2+2, "the first, the ten, and ticks of the leader's own")
	})
}

func TestACrowdLeavesBesideTheEntryInFlight(t *testing.T) {
	bubble(t, func(cfg *metadata.Config) { cfg.EntryCommands = 64 }, func(c *cluster) {
		_, took := together(t, c, 1+4*64)
		require.Less(t, took, 3*time.Second, "one after the other they would take five")
	})
}

func TestAnIdleServerAddsNoDelay(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		k := c.open(peer(transport.RoleClient, "c1"))
		began := time.Now()
		for i := range 20 {
			_, err := k.do(mkdir(root, fmt.Sprint(i)))
			require.NoError(t, err)
		}
		require.Zero(t, time.Since(began), "no time passes in a store that takes none")
	})
}

// TestAFullQueueHoldsCallersBack fills the queue behind a store that hangs: callers wait at the
// door until their deadlines, and when the store continues, queued commands take effect.
func TestAFullQueueHoldsCallersBack(t *testing.T) {
	small := func(cfg *metadata.Config) {
		cfg.QueuedCommands, cfg.EntriesInFlight, cfg.EntryCommands = 4, 1, 2
	}
	bubble(t, small, func(c *cluster) {
		k := make([]*client, 20)
		for i := range k {
			k[i] = c.open(peer(transport.RoleClient, "c1"))
		}
		c.group.Fail(metadatatest.Faults{Slow: 5 * time.Second})
		var wg sync.WaitGroup
		var mu sync.Mutex
		outcomes := map[moraine.Kind]int{}
		for i := range k {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(transport.WithPeer(context.Background(), k[i].peer), time.Second)
				defer cancel()
				req := mkdir(root, fmt.Sprint(i))
				req.Session, req.Number = k[i].session, 1
				routed(req)
				_, err := c.leader().Do(ctx, req)
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					outcomes[moraine.KindOf(err)]++
				}
			})
		}
		wg.Wait()
		require.Equal(t, map[moraine.Kind]int{moraine.Timeout: 20}, outcomes)
		c.group.Fail(metadatatest.Faults{})
		time.Sleep(20 * time.Second)
		synctest.Wait()
		made := 0
		for i := range k {
			_, err := c.do(k[i].peer, lookup(fmt.Sprint(i)))
			if err == nil {
				made++
			} else {
				require.ErrorIs(t, err, moraine.NotFound)
			}
			// A retry of the request is answered, whether it had taken effect or not.
			req := mkdir(root, fmt.Sprint(i))
			req.Session, req.Number = k[i].session, 1
			_, err = c.do(k[i].peer, req)
			require.NoError(t, err)
		}
		require.Greater(t, made, 0)
		require.Less(t, made, 20, "those at the door took no effect")
	})
}

// If a command is still in the queue when its caller's deadline ends, the log says so: it waits for
// the entry in flight. A command in flight itself waits for its answer.
func TestACommandThatStaysInTheQueueIsReported(t *testing.T) {
	var log syncedLog
	bubbleWith(t, func(cfg *metadata.Config, deps *metadata.Deps) {
		cfg.EntriesInFlight = 1
		deps.Log = slog.New(slog.NewTextHandler(&log, nil))
	}, func(c *cluster) {
		first, second := c.open(peer(transport.RoleClient, "c1")), c.open(peer(transport.RoleClient, "c1"))
		c.group.Fail(metadatatest.Faults{Slow: 5 * time.Second})
		within := func(k *client, name string) error {
			ctx, cancel := context.WithTimeout(transport.WithPeer(context.Background(), k.peer), time.Second)
			defer cancel()
			req := mkdir(root, name)
			req.Session, req.Number = k.session, 1
			routed(req)
			_, err := c.leader().Do(ctx, req)
			return err
		}
		require.Equal(t, moraine.Timeout, moraine.KindOf(within(first, "in flight")))
		require.Contains(t, log.String(), `msg="resource wait exceeded" resource="answer to a log entry"`)
		require.NotContains(t, log.String(), "queue of commands")
		require.Equal(t, moraine.Timeout, moraine.KindOf(within(second, "in the queue"))) // behind the first
		require.Contains(t, log.String(), `msg="resource wait exceeded" resource="queue of commands"`)
		c.group.Fail(metadatatest.Faults{})
	})
}

// The leader's own commands have no deadline. While an entry gets no answer they wait on, and the log
// says so.
func TestALeadersOwnCommandThatWaitsIsReported(t *testing.T) {
	var log syncedLog
	bubbleWith(t, func(cfg *metadata.Config, deps *metadata.Deps) {
		deps.Log = slog.New(slog.NewTextHandler(&log, nil))
	}, func(c *cluster) {
		c.group.Fail(metadatatest.Faults{Slow: 70 * time.Second})
		time.Sleep(29 * time.Second)
		require.NotContains(t, log.String(), "resource wait exceeded")
		time.Sleep(5 * time.Second)
		require.Contains(t, log.String(), `msg="resource wait exceeded" resource="answer to a log entry"`)
		c.group.Fail(metadatatest.Faults{})
		time.Sleep(2 * time.Minute)
	})
}

// syncedLog collects the servers' log.
type syncedLog struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *syncedLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *syncedLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func TestCallersOfAFallenLeaderAreReleased(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		k := c.open(peer(transport.RoleClient, "c1"))
		c.group.Fail(metadatatest.Faults{Slow: 10 * time.Second})
		done := make(chan error, 1)
		go func() {
			_, err := k.do(mkdir(root, "a"))
			done <- err
		}()
		time.Sleep(time.Second)
		c.group.Elect("m2")
		err := <-done
		require.ErrorIs(t, err, moraine.Unavailable)
		c.group.Fail(metadatatest.Faults{})
	})
}
