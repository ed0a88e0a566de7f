package client_test

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/integration/memcluster"
	"github.com/morainefs/moraine/internal/rawclient"
	"github.com/morainefs/moraine/transport/wire"
)

type metaHook = func(*wire.MetaRequest) (func(*wire.MetaResponse, error) (*wire.MetaResponse, error), error)

// loseReply makes the first n matching requests take effect without an answer.
func loseReply(n int, match func(*wire.MetaRequest) bool) metaHook {
	var left atomic.Int64
	left.Store(int64(n))
	return func(req *wire.MetaRequest) (func(*wire.MetaResponse, error) (*wire.MetaResponse, error), error) {
		if !match(req) || left.Add(-1) < 0 {
			return nil, nil
		}
		return func(*wire.MetaResponse, error) (*wire.MetaResponse, error) {
			return nil, errKind(moraine.Unavailable)
		}, nil
	}
}

// Every mutation whose reply is lost is applied once, whatever it is.
func TestLostRepliesAreRepeatedOnce(t *testing.T) {
	inCluster(t, 6, func(c *cluster) {
		cl := c.dial("c1", config())
		defer cl.Close()
		// An exclusive creation, a rename and a removal would fail if done twice.
		steps := map[string]func() error{
			"mkdir":  func() error { _, err := cl.Mkdir(c.ctx, "/d", 0); return err },
			"rename": func() error { return cl.Rename(c.ctx, "/d", "/e", client.RenameOptions{NoReplace: true}) },
			"remove": func() error { return cl.Remove(c.ctx, "/e") },
			"write": func() error {
				f, err := cl.Create(c.ctx, "/f", client.CreateOptions{})
				if err != nil {
					return err
				}
				if _, err := f.Write(bytesOf(1, 100_000)); err != nil {
					return err
				}
				_, err = f.Commit(c.ctx)
				return err
			},
		}
		for _, name := range []string{"mkdir", "rename", "remove", "write"} {
			c.OnMeta(loseReply(3, func(req *wire.MetaRequest) bool { return req.Number != 0 }))
			require.NoError(t, steps[name](), name)
		}
		c.OnMeta(nil)
		require.True(t, bytes.Equal(bytesOf(1, 100_000), read(t, c, cl, "/f")))
		require.GreaterOrEqual(t, cl.Stats().MetaRetries, uint64(9))
	})
}

// Callers notice none of several failovers.
func TestFailover(t *testing.T) {
	inCluster(t, 6, func(c *cluster) {
		cl := c.dial("c1", config())
		defer cl.Close()
		var wg sync.WaitGroup
		stop := make(chan struct{})
		wg.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				case <-time.After(700 * time.Millisecond):
					c.Elect(fmt.Sprintf("m%d", i%3+1))
				}
			}
		})
		for i := range 40 {
			path := fmt.Sprintf("/f%d", i)
			data := bytesOf(uint64(i), 300_000)
			write(t, c, cl, path, data, 50_000, false)
			require.True(t, bytes.Equal(data, read(t, c, cl, path)))
			time.Sleep(100 * time.Millisecond)
		}
		close(stop)
		wg.Wait()
	})
}

// Without a leader a call waits, and fails when its patience ends.
func TestNoLeader(t *testing.T) {
	inCluster(t, 3, func(c *cluster) {
		cfg := config()
		cfg.Patience = 30 * time.Second
		cl := c.dial("c1", cfg)
		defer cl.Close()
		c.Elect("")
		began := time.Now()
		_, err := cl.Stat(c.ctx, "/")
		require.ErrorIs(t, err, moraine.Timeout)
		require.InDelta(t, 30, time.Since(began).Seconds(), 2)
		_, err = cl.Stat(c.within(time.Second), "/")
		require.ErrorIs(t, err, moraine.Timeout)
		c.Run(func(context.Context) error { time.Sleep(5 * time.Second); c.Elect("m3"); return nil })
		_, err = cl.Stat(c.ctx, "/")
		require.NoError(t, err)
	})
}

// A client that cannot reach the service for longer than a session lasts opens another session.
// Requests by name and open readers continue. A file being written is lost, and its calls
// return that error.
func TestSessionExpiry(t *testing.T) {
	inCluster(t, 6, func(c *cluster) {
		cl := c.dial("c1", config())
		defer cl.Close()
		data := bytesOf(1, 800_000)
		write(t, c, cl, "/f", data, 1<<30, false)
		r, err := cl.OpenFile(c.ctx, "/f")
		require.NoError(t, err)
		defer r.Close()
		f, err := cl.Create(c.ctx, "/g", client.CreateOptions{})
		require.NoError(t, err)
		_, err = f.Write(data)
		require.NoError(t, err)
		first := cl.Session()

		for _, m := range memcluster.Servers() {
			c.Net.Partition("c1", m)
		}
		time.Sleep(2 * time.Minute)
		c.Net.Heal()
		_, err = cl.Mkdir(c.ctx, "/d", 0)
		require.NoError(t, err)
		require.NotEqual(t, first, cl.Session())

		got := make([]byte, len(data))
		require.NoError(t, r.ReadRange(c.ctx, got, 0))
		require.True(t, bytes.Equal(data, got))
		_, err = f.Write(data)
		require.ErrorIs(t, err, moraine.SessionExpired)
		_, err = f.Commit(c.ctx)
		require.ErrorIs(t, err, moraine.SessionExpired)
		_, err = cl.Stat(c.ctx, "/g")
		require.ErrorIs(t, err, moraine.NotFound)
		write(t, c, cl, "/g", data, 1<<30, false)
		require.True(t, bytes.Equal(data, read(t, c, cl, "/g")))
	})
}

// The client never reports a commit that may have taken effect as one that has not. Each row is
// what the service does to the commit and to later requests. took is whether the file must
// exist.
func TestUnknownOutcomeOfACommit(t *testing.T) {
	lost := func(*wire.MetaResponse, error) (*wire.MetaResponse, error) { return nil, errKind(moraine.Timeout) }
	for name, row := range map[string]struct {
		lost bool         // the first attempt takes effect, and its answer is lost
		then moraine.Kind // the answer to the next attempt
		open moraine.Kind // the answer to the opening of another session, if not 0
		want moraine.Kind
	}{
		"answer lost, then cut off":               {true, moraine.SessionExpired, 0, moraine.SessionExpired},
		"answer lost, cut off, no new session":    {true, moraine.SessionExpired, moraine.PermissionDenied, moraine.SessionExpired},
		"cut off, no new session":                 {false, moraine.SessionExpired, moraine.PermissionDenied, moraine.SessionExpired},
		"answer lost, then the disk is full":      {true, moraine.NoSpace, 0, moraine.Timeout},
		"answer lost, then a certificate expires": {true, moraine.Unauthenticated, 0, moraine.Timeout},
		"the disk is full":                        {false, moraine.NoSpace, 0, moraine.NoSpace},
	} {
		t.Run(name, func(t *testing.T) {
			inCluster(t, 3, func(c *cluster) {
				cl := c.dial("c1", config())
				defer cl.Close()
				f, err := cl.Create(c.ctx, "/f", client.CreateOptions{})
				require.NoError(t, err)
				_, err = f.Write(bytesOf(1, 1000))
				require.NoError(t, err)
				var commits atomic.Int32
				c.OnMeta(func(req *wire.MetaRequest) (func(*wire.MetaResponse, error) (*wire.MetaResponse, error), error) {
					switch {
					case req.GetOpenSession() != nil && row.open != 0:
						return nil, errKind(row.open)
					case req.GetCommit() == nil:
						return nil, nil
					case commits.Add(1) == 1 && row.lost:
						return lost, nil
					}
					return nil, errKind(row.then)
				})
				_, err = f.Commit(c.ctx)
				require.Equal(t, row.want, moraine.KindOf(err), "%v", err)
				c.OnMeta(nil)
				_, err = cl.Stat(c.ctx, "/f")
				if row.lost {
					require.NoError(t, err, "it did take effect")
				} else {
					require.ErrorIs(t, err, moraine.NotFound)
				}
			})
		})
	}
}

// The client does not repeat a mutation under another session if it may have taken effect under
// the expired one.
func TestUnknownOutcomeAcrossSessions(t *testing.T) {
	inCluster(t, 3, func(c *cluster) {
		cl := c.dial("c1", config())
		defer cl.Close()
		n := 0
		c.OnMeta(func(req *wire.MetaRequest) (func(*wire.MetaResponse, error) (*wire.MetaResponse, error), error) {
			if req.GetCreate() == nil {
				return nil, nil
			}
			if n++; n == 1 {
				return func(*wire.MetaResponse, error) (*wire.MetaResponse, error) { return nil, errKind(moraine.Timeout) }, nil
			}
			return nil, errKind(moraine.SessionExpired)
		})
		_, err := cl.Mkdir(c.ctx, "/d", 0)
		require.ErrorIs(t, err, moraine.SessionExpired)
		require.Equal(t, 2, n)
		c.OnMeta(nil)
		a, err := cl.Stat(c.ctx, "/d")
		require.NoError(t, err, "it did take effect")
		require.Equal(t, client.TypeDirectory, a.Type())

		// If it certainly did not, the client repeats it.
		n = 0
		c.OnMeta(func(req *wire.MetaRequest) (func(*wire.MetaResponse, error) (*wire.MetaResponse, error), error) {
			if req.GetCreate() != nil {
				if n++; n == 1 {
					return nil, errKind(moraine.SessionExpired)
				}
			}
			return nil, nil
		})
		_, err = cl.Mkdir(c.ctx, "/e", 0)
		require.NoError(t, err)
	})
}

// The client acknowledges answers so that the service can forget them, and never has more than
// its window outstanding.
func TestAnswersAreAcknowledged(t *testing.T) {
	inCluster(t, 3, func(c *cluster) {
		cl := c.dial("c1", config())
		defer cl.Close()
		var mu sync.Mutex
		var worst, last uint64
		c.OnMeta(func(req *wire.MetaRequest) (func(*wire.MetaResponse, error) (*wire.MetaResponse, error), error) {
			mu.Lock()
			defer mu.Unlock()
			if req.Number != 0 {
				worst, last = max(worst, req.Number-req.AckedBelow), max(last, req.Number)
			}
			return nil, nil
		})
		var wg sync.WaitGroup
		for i := range 1500 {
			wg.Go(func() {
				_, err := cl.Mkdir(c.ctx, fmt.Sprintf("/d%d", i), 0)
				require.NoError(t, err)
			})
		}
		wg.Wait()
		require.GreaterOrEqual(t, last, uint64(1500))
		require.Less(t, worst, uint64(1024))
	})
}

// Tokens expire and keys are replaced while a client works; its callers notice nothing.
func TestTokensAreRenewed(t *testing.T) {
	inCluster(t, 6, func(c *cluster) {
		cl := c.dial("c1", config())
		defer cl.Close()
		data := bytesOf(1, 300_000)
		for i := range 3 {
			path := fmt.Sprintf("/f%d", i)
			write(t, c, cl, path, data, 1<<30, false)
			require.True(t, bytes.Equal(data, read(t, c, cl, path)))
			time.Sleep(7*time.Minute + time.Duration(i)*time.Second)
		}
		// The first refused request renews a token that expired while the network was cut.
		r, err := cl.OpenFile(c.ctx, "/f0")
		require.NoError(t, err)
		defer r.Close()
		got := make([]byte, len(data))
		require.NoError(t, r.ReadRange(c.ctx, got, 0))
		for _, m := range memcluster.Servers() {
			c.Net.Partition("c1", m)
		}
		time.Sleep(15 * time.Minute)
		c.Net.Heal()
		require.NoError(t, r.ReadRange(c.ctx, got, 0))
		require.True(t, bytes.Equal(data, got))
	})
}

// The client does not repeat a read for ever that the servers refuse.
func TestRefusedRead(t *testing.T) {
	inCluster(t, 6, func(c *cluster) {
		cl := c.dial("c1", config())
		defer cl.Close()
		write(t, c, cl, "/f", bytesOf(1, 300_000), 1<<30, false)
		r, err := cl.OpenFile(c.ctx, "/f")
		require.NoError(t, err)
		defer r.Close()
		for _, h := range c.Hosts {
			h.Before(func(context.Context, any) error { return errKind(moraine.PermissionDenied) })
		}
		require.ErrorIs(t, r.ReadRange(c.within(5*time.Second), make([]byte, 10), 0), moraine.PermissionDenied)
	})
}

// Close ends the session: the service forgets it at once.
func TestCloseEndsSession(t *testing.T) {
	inCluster(t, 3, func(c *cluster) {
		cl := c.dial("c1", config())
		f, err := cl.Create(c.ctx, "/f", client.CreateOptions{})
		require.NoError(t, err)
		f.Abort()
		other := c.dial("c2", config())
		defer other.Close()
		require.EqualValues(t, 2, sessions(t, c, other))
		require.NoError(t, cl.Close())
		require.NoError(t, cl.Close())
		require.EqualValues(t, 1, sessions(t, c, other))
	})
}

func sessions(t *testing.T, c *cluster, cl *client.Client) uint64 {
	resp, err := rawclient.Of(cl).Meta(c.ctx, &wire.MetaRequest{Op: &wire.MetaRequest_GetCluster{GetCluster: &wire.GetCluster{}}})
	require.NoError(t, err)
	return resp.GetCluster().Sessions
}

func TestDialRefusesBadConfig(t *testing.T) {
	inCluster(t, 1, func(c *cluster) {
		for name, change := range map[string]func(*client.Config){
			"no servers":    func(cfg *client.Config) { cfg.Metadata = nil },
			"no address":    func(cfg *client.Config) { cfg.Metadata = [][]string{{}} },
			"chunk size":    func(cfg *client.Config) { cfg.ChunkBytes = 5000 },
			"chunk too big": func(cfg *client.Config) { cfg.ChunkBytes = 32 << 20 },
			"level":         func(cfg *client.Config) { cfg.Level = moraine.Object },
			"scheme":        func(cfg *client.Config) { cfg.Scheme = moraine.Scheme{K: 30, M: 10} },
			"memory":        func(cfg *client.Config) { cfg.MemoryBytes = 1 },
			"in flight":     func(cfg *client.Config) { cfg.StripesInFlight = -1 },
		} {
			cfg := config()
			change(&cfg)
			_, err := client.Dial(c.ctx, cfg, client.Deps{})
			require.ErrorIs(t, err, moraine.InvalidArgument, name)
		}
	})
}

// A chunkserver's heartbeats and reports do not wait for a long poll of the same session,
// however many it sends meanwhile.
func TestHeartbeatsPassALongPoll(t *testing.T) {
	inCluster(t, 1, func(c *cluster) {
		cl := c.dial("c1", config())
		defer cl.Close()
		polling, release := make(chan struct{}, 100), make(chan struct{})
		c.OnMeta(func(req *wire.MetaRequest) (func(*wire.MetaResponse, error) (*wire.MetaResponse, error), error) {
			switch {
			case req.GetLeaseJobs() != nil:
				polling <- struct{}{}
				<-release
				return nil, errKind(moraine.PermissionDenied)
			case req.GetHeartbeat() != nil, req.GetReportChunks() != nil:
				return nil, errKind(moraine.NotFound) // an answer like any other
			}
			return nil, nil
		})
		ended := make(chan error, 1)
		go func() {
			_, err := rawclient.Of(cl).Meta(c.ctx, &wire.MetaRequest{Op: &wire.MetaRequest_LeaseJobs{LeaseJobs: &wire.LeaseJobs{}}})
			ended <- err
		}()
		<-polling
		for range 600 {
			_, err := rawclient.Of(cl).Meta(c.ctx, &wire.MetaRequest{Op: &wire.MetaRequest_Heartbeat{Heartbeat: &wire.Heartbeat{}}})
			require.ErrorIs(t, err, moraine.NotFound)
			_, err = rawclient.Of(cl).Meta(c.ctx, &wire.MetaRequest{Op: &wire.MetaRequest_ReportChunks{ReportChunks: &wire.ReportChunks{}}})
			require.ErrorIs(t, err, moraine.NotFound)
		}
		close(release)
		require.ErrorIs(t, <-ended, moraine.PermissionDenied)
	})
}
