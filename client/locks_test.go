package client_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/internal/rawclient"
	"github.com/morainefs/moraine/transport/wire"
)

// writing and reading are locks of an owner.
func writing(owner, start, end uint64) client.FileLock {
	return client.FileLock{Owner: owner, Start: start, End: end, Write: true}
}

func reading(owner, start, end uint64) client.FileLock {
	return client.FileLock{Owner: owner, Start: start, End: end}
}

// twoLockers is a file and two clients.
func twoLockers(c *cluster) (inode moraine.InodeID, a, b *client.Client) {
	c.t.Helper()
	a, b = c.dial("c1", config()), c.dial("c2", config())
	attr, err := a.Inodes().CreateEmpty(c.ctx, a.Root(), "f", 0o644)
	require.NoError(c.t, err)
	return attr.Inode(), a, b
}

// TestLockFaults: the request for a lock or an unlock is lost, or its reply, or the leader changes, or
// the session ends. Then the service has exactly what the client reports.
func TestLockFaults(t *testing.T) {
	set := func(unlock bool) func(*wire.MetaRequest) bool {
		return func(r *wire.MetaRequest) bool { return r.GetSetLock() != nil && r.GetSetLock().Unlock == unlock }
	}
	faults := map[string]func(c *cluster, cl *client.Client, match func(*wire.MetaRequest) bool){
		"reply lost": func(c *cluster, _ *client.Client, match func(*wire.MetaRequest) bool) { c.OnMeta(loseReply(3, match)) },
		"request lost": func(c *cluster, _ *client.Client, match func(*wire.MetaRequest) bool) {
			left := 3
			c.OnMeta(func(req *wire.MetaRequest) (func(*wire.MetaResponse, error) (*wire.MetaResponse, error), error) {
				if match(req) && left > 0 {
					left--
					return nil, errKind(moraine.Unavailable)
				}
				return nil, nil
			})
		},
		"leader changes": func(c *cluster, _ *client.Client, match func(*wire.MetaRequest) bool) {
			changed := false
			c.OnMeta(func(req *wire.MetaRequest) (func(*wire.MetaResponse, error) (*wire.MetaResponse, error), error) {
				if !match(req) || changed {
					return nil, nil
				}
				changed = true
				return func(*wire.MetaResponse, error) (*wire.MetaResponse, error) {
					c.Elect("m2")
					return nil, errKind(moraine.Unavailable)
				}, nil
			})
		},
		"session ended before": func(c *cluster, cl *client.Client, _ func(*wire.MetaRequest) bool) {
			_, err := rawclient.Of(cl).Meta(c.ctx, &wire.MetaRequest{Op: &wire.MetaRequest_CloseSession{CloseSession: &wire.CloseSession{}}})
			require.NoError(c.t, err)
		},
	}
	for name, fault := range faults {
		for _, unlock := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, unlock %t", name, unlock), func(t *testing.T) {
				inCluster(t, 6, func(c *cluster) {
					inode, a, b := twoLockers(c)
					defer a.Close()
					defer b.Close()
					if unlock {
						require.NoError(t, a.Inodes().Lock(c.ctx, inode, writing(1, 0, 100), false))
					}
					fault(c, a, set(unlock))
					if unlock {
						require.NoError(t, a.Inodes().Unlock(c.ctx, inode, writing(1, 0, 100)))
					} else {
						require.NoError(t, a.Inodes().Lock(c.ctx, inode, writing(1, 0, 100), false))
					}
					c.OnMeta(nil)
					err := b.Inodes().Lock(c.ctx, inode, reading(1, 99, 100), false)
					if unlock {
						require.NoError(t, err)
						return
					}
					require.ErrorIs(t, err, moraine.Busy)
					require.NoError(t, a.Inodes().Unlock(c.ctx, inode, writing(1, 0, 100)))
					require.NoError(t, b.Inodes().Lock(c.ctx, inode, writing(1, 0, 100), false))
				})
			})
		}
	}
}

// TestALockThatItsCallerLeftIsGivenBack: the caller leaves before the answer arrives. Afterwards its
// owner has what it had before, and nothing else.
func TestALockThatItsCallerLeftIsGivenBack(t *testing.T) {
	inCluster(t, 6, func(c *cluster) {
		inode, a, b := twoLockers(c)
		defer a.Close()
		defer b.Close()
		require.NoError(t, a.Inodes().Lock(c.ctx, inode, reading(1, 40, 50), false))
		arrived, goOn := make(chan struct{}), make(chan struct{})
		first := true
		c.OnMeta(func(req *wire.MetaRequest) (func(*wire.MetaResponse, error) (*wire.MetaResponse, error), error) {
			if req.GetSetLock() == nil || !first {
				return nil, nil
			}
			first = false
			return func(r *wire.MetaResponse, err error) (*wire.MetaResponse, error) {
				close(arrived)
				<-goOn
				return r, err
			}, nil
		})
		ctx, leave := context.WithCancel(c.ctx)
		result := make(chan error)
		go func() { result <- a.Inodes().Lock(ctx, inode, writing(1, 0, 100), true) }()
		<-arrived
		leave()
		require.ErrorIs(t, <-result, moraine.Canceled)
		require.ErrorIs(t, b.Inodes().Lock(c.ctx, inode, reading(1, 0, 1), false), moraine.Busy, "the service gave the lock")
		close(goOn)
		synctest.Wait()
		require.NoError(t, b.Inodes().Lock(c.ctx, inode, writing(1, 0, 40), false))
		require.NoError(t, b.Inodes().Lock(c.ctx, inode, writing(1, 50, 1000), false))
		require.NoError(t, b.Inodes().Lock(c.ctx, inode, reading(1, 40, 50), false), "the owner reads")
		require.ErrorIs(t, b.Inodes().Lock(c.ctx, inode, writing(1, 40, 41), false), moraine.Busy)
		require.NoError(t, a.Inodes().Unlock(c.ctx, inode, reading(1, 0, client.LockEnd)))
		require.NoError(t, b.Inodes().Lock(c.ctx, inode, writing(1, 40, 41), false))
	})
}

// TestWaitersGetALockInTheirOrder, also those that wait behind one that left; and a change of the
// leader loses none.
func TestWaitersGetALockInTheirOrder(t *testing.T) {
	for _, elect := range []bool{false, true} {
		t.Run(fmt.Sprintf("leader changes %t", elect), func(t *testing.T) {
			inCluster(t, 6, func(c *cluster) {
				inode, a, b := twoLockers(c)
				defer a.Close()
				defer b.Close()
				require.NoError(t, a.Inodes().Lock(c.ctx, inode, writing(1, 0, 10), false))
				ctx, leave := context.WithCancel(c.ctx)
				left := make(chan error, 1)
				go func() { left <- b.Inodes().Lock(ctx, inode, writing(99, 0, 10), true) }()
				time.Sleep(time.Second)
				got := make(chan uint64, 10)
				const waiters = 6
				var running sync.WaitGroup
				for i := range uint64(waiters) {
					cl := []*client.Client{a, b}[i%2]
					running.Go(func() {
						if err := cl.Inodes().Lock(c.ctx, inode, writing(10+i, 0, 10), true); err != nil {
							t.Error(err)
						}
						got <- i
						time.Sleep(time.Second)
						if err := cl.Inodes().Unlock(c.ctx, inode, writing(10+i, 0, 10)); err != nil {
							t.Error(err)
						}
					})
					time.Sleep(time.Second)
				}
				leave()
				require.ErrorIs(t, <-left, moraine.Canceled)
				if elect {
					c.elect("m2")
					time.Sleep(time.Minute)
				}
				require.NoError(t, a.Inodes().Unlock(c.ctx, inode, writing(1, 0, 10)))
				var order []uint64
				for range waiters {
					order = append(order, <-got)
				}
				running.Wait()
				if elect { // each waits at the next leader from its next request on
					require.ElementsMatch(t, []uint64{0, 1, 2, 3, 4, 5}, order)
				} else {
					require.Equal(t, []uint64{0, 1, 2, 3, 4, 5}, order)
				}
			})
		})
	}
}

// TestWaitersOfASessionAreBounded: the error is QuotaExceeded, and the others go on to wait.
func TestWaitersOfASessionAreBounded(t *testing.T) {
	inCluster(t, 6, func(c *cluster) {
		inode, a, b := twoLockers(c)
		defer a.Close()
		defer b.Close()
		require.NoError(t, a.Inodes().Lock(c.ctx, inode, writing(1, 0, 10), false))
		raw := rawclient.Of(b)
		wait := func(owner uint64) (*wire.MetaResponse, error) {
			return raw.Meta(c.ctx, &wire.MetaRequest{Op: &wire.MetaRequest_AwaitLock{AwaitLock: &wire.AwaitLock{Inode: uint64(inode),
				Lock: &wire.FileLock{Owner: owner, Start: 0, End: 10, Write: true}, WaitMillis: 20_000}}})
		}
		const bound = 512
		answers := make(chan error, bound)
		for i := range uint64(bound) {
			go func() {
				_, err := wait(i)
				answers <- err
			}()
		}
		synctest.Wait()
		_, err := wait(bound)
		require.ErrorIs(t, err, moraine.QuotaExceeded)
		for range bound {
			require.NoError(t, <-answers)
		}
	})
}

// TestADeadlockOfThreeOwnersIsFound, on three files; a wait for a lock that was given back is none.
func TestADeadlockOfThreeOwnersIsFound(t *testing.T) {
	inCluster(t, 6, func(c *cluster) {
		_, a, b := twoLockers(c)
		defer a.Close()
		defer b.Close()
		owners := []*client.Client{a, b, a} // the first and the last are two owners of one client
		files := make([]moraine.InodeID, len(owners))
		lock := func(owner, file int, wait bool) error {
			return owners[owner].Inodes().Lock(c.ctx, files[file], writing(uint64(owner), 0, 1), wait)
		}
		for i := range files {
			attr, err := a.Inodes().CreateEmpty(c.ctx, a.Root(), fmt.Sprint("g", i), 0o644)
			require.NoError(t, err)
			files[i] = attr.Inode()
			require.NoError(t, lock(i, i, false))
		}
		results := make([]chan error, len(owners))
		for i := range owners {
			results[i] = make(chan error, 1)
			if i < len(owners)-1 {
				go func() { results[i] <- lock(i, i+1, true) }()
				time.Sleep(time.Second)
			}
		}
		require.ErrorIs(t, lock(2, 0, true), client.ErrDeadlock)
		require.NoError(t, owners[2].Inodes().Unlock(c.ctx, files[2], writing(2, 0, 1)))
		require.NoError(t, <-results[1])
		require.NoError(t, owners[1].Inodes().Unlock(c.ctx, files[1], writing(1, 0, 1)))
		require.NoError(t, <-results[0])
		require.ErrorIs(t, lock(2, 1, false), moraine.Busy)
	})
}

// TestALostSessionsLocksAreFreeAtOnce: from the command on that ends the session, without cleanup.
func TestALostSessionsLocksAreFreeAtOnce(t *testing.T) {
	inCluster(t, 6, func(c *cluster) {
		inode, a, b := twoLockers(c)
		defer a.Close()
		defer b.Close()
		require.NoError(t, a.Inodes().Lock(c.ctx, inode, writing(1, 0, 10), false))
		h := openFile(c, a, "/f")
		defer func() { require.NoError(t, h.Close(c.ctx)) }()
		writeAt(t, c, h, []byte("unsent"), 0)
		waits := make(chan error, 1)
		go func() { waits <- b.Inodes().Lock(c.ctx, inode, writing(1, 0, 10), true) }()
		synctest.Wait()
		_, err := rawclient.Of(a).Meta(c.ctx, &wire.MetaRequest{Op: &wire.MetaRequest_CloseSession{CloseSession: &wire.CloseSession{}}})
		require.NoError(t, err)
		require.NoError(t, <-waits)
		require.ErrorIs(t, h.Flush(c.ctx), moraine.IOError, "what was written under the lock is not committed without it")
		_, err = h.WriteAt(c.ctx, []byte("late"), 0)
		require.ErrorIs(t, err, moraine.IOError)
		require.ErrorIs(t, h.Truncate(c.ctx, 0), moraine.IOError)
		require.ErrorIs(t, h.Grow(c.ctx, 100), moraine.IOError)
		require.ErrorIs(t, h.PunchHole(c.ctx, 0, 4, 0), moraine.IOError)
		src := openNew(t, c, a, "source")
		writeAt(t, c, src, []byte("cloned"), 0)
		require.ErrorIs(t, h.CloneRange(c.ctx, src, 0, 0, 6), moraine.IOError)
		require.NoError(t, src.Close(c.ctx))
		require.ErrorIs(t, h.Sync(c.ctx), moraine.IOError)
		require.ErrorIs(t, a.Inodes().Lock(c.ctx, inode, reading(1, 50, 51), false), moraine.IOError)
		require.NoError(t, a.Inodes().Unlock(c.ctx, inode, reading(1, 0, client.LockEnd)))
		require.ErrorIs(t, a.Inodes().Lock(c.ctx, inode, reading(1, 0, 1), false), moraine.Busy)
		writeAt(t, c, h, []byte("on purpose"), 0)
		require.NoError(t, h.Sync(c.ctx))
	})
}

func openFile(c *cluster, cl *client.Client, path string) *client.Handle {
	c.t.Helper()
	a, err := cl.Stat(c.ctx, path)
	require.NoError(c.t, err)
	h, err := cl.Inodes().OpenHandle(c.ctx, a.Inode(), client.HandleOptions{})
	require.NoError(c.t, err)
	return h
}
