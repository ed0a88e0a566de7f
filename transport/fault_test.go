package transport_test

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/crc"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// modes are the modes over TCP, for tests that interfere below the socket.
func modes() []network {
	return []network{{mode: transport.Secure}, {mode: transport.CRC}, {mode: transport.Insecure}}
}

// behindProxy starts a chunkserver n1 with a proxy in front of it.
func behindProxy(t *testing.T, n network, a *authority, sh transport.ChunkService) (*proxy, transport.Chunks) {
	s := n.serve(t, a, transport.RoleChunkserver, "n1", transport.HandlerForChunks(sh))
	x := newProxy(t, s.Addresses()[0])
	p, err := transport.NewPool(transport.PoolConfig{Mode: n.mode, Cluster: cluster, Role: transport.RoleClient, Node: "c1",
		DeadAfter: 400 * time.Millisecond, BulkConnections: 1, MaxBackoff: 40 * time.Millisecond, DialTimeout: time.Second},
		transport.PoolDeps{Identity: n.identity(t, a, transport.RoleClient, "c1")})
	require.NoError(t, err)
	p.SetToken(a.token(t, "c1", time.Hour))
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return x, p.Chunks("n1", []string{x.addr()})
}

// eventually retries f, as callers do, until it succeeds.
func eventually(t *testing.T, f func() error) {
	t.Helper()
	require.Eventually(t, func() bool { return f() == nil }, 20*time.Second, 5*time.Millisecond)
}

// Every step of a put fails once: the connection breaks after each number of bytes,
// in either direction. The caller gets an error, the server keeps no torn chunk,
// and the next put succeeds.
func TestConnectionCutAtEveryStep(t *testing.T) {
	for _, n := range modes() {
		t.Run(n.String(), func(t *testing.T) {
			a, sh := newAuthority(t), newShelf()
			x, c := behindProxy(t, n, a, sh)
			ctx := testContext(t)
			data := random(300<<10, 1)
			eventually(t, func() error { _, err := put(ctx, c, 1, data); return err })
			for _, up := range []bool{true, false} {
				for _, after := range []int{0, 1, 63, 64, 100, 5000, 200 << 10} {
					passed := 0
					x.set(func(u bool, b []byte) []byte {
						if u != up {
							return b
						}
						if passed += len(b); passed > after {
							return nil
						}
						return b
					})
					_, err := put(ctx, c, 2, data)
					if up || after < 63 {
						require.ErrorIs(t, err, moraine.Unavailable, "cut after %d, up %v", after, up)
					}
					x.set(nil)
					eventually(t, func() error { _, err := put(ctx, c, 3, data); return err })
				}
			}
			sh.mu.Lock()
			defer sh.mu.Unlock()
			for id, got := range sh.chunks {
				require.True(t, bytes.Equal(data, got), "chunk %v is torn", id)
			}
		})
	}
}

// The put takes effect and its reply is lost; the same put again succeeds.
func TestReplyIsLost(t *testing.T) {
	for _, n := range modes() {
		t.Run(n.String(), func(t *testing.T) {
			a, sh := newAuthority(t), newShelf()
			x, c := behindProxy(t, n, a, sh)
			ctx := testContext(t)
			data := random(100, 1)
			eventually(t, func() error { _, err := put(ctx, c, 1, data); return err })
			x.set(func(up bool, b []byte) []byte {
				if up {
					return b
				}
				return nil
			})
			_, err := put(ctx, c, 2, data)
			require.ErrorIs(t, err, moraine.Unavailable)
			require.Eventually(t, func() bool { sh.mu.Lock(); defer sh.mu.Unlock(); return sh.puts == 2 }, 10*time.Second, time.Millisecond)
			x.set(nil)
			eventually(t, func() error { _, err := put(ctx, c, 2, data); return err })
		})
	}
}

// Changed bits in transit are detected: by the checksums of header, message and
// payload on an unencrypted connection, and by TLS otherwise. None arrives as
// content.
func TestBitsChangeOnTheWay(t *testing.T) {
	for _, n := range modes() {
		t.Run(n.String(), func(t *testing.T) {
			a, sh := newAuthority(t), newShelf()
			x, c := behindProxy(t, n, a, sh)
			ctx := testContext(t)
			data := random(20000, 1)
			eventually(t, func() error { _, err := put(ctx, c, 1, data); return err })
			r := rand.New(rand.NewPCG(7, 7))
			for i := range 60 {
				up := i%2 == 0
				var once sync.Once
				x.set(func(u bool, b []byte) []byte {
					if u == up {
						once.Do(func() { b[r.IntN(len(b))] ^= 1 << r.IntN(8) })
					}
					return b
				})
				short, cancel := context.WithTimeout(ctx, 2*time.Second)
				put(short, c, 2, data) //nolint:errcheck // it may fail in many ways; what was kept is looked at below
				dst := make([]byte, len(data))
				reply, k, err := c.Get(short, &wire.GetChunk{Stripe: 1, Length: uint64(len(data))}, dst, nil)
				if err == nil && reply.PayloadCrc == crc.Sum(dst[:k]) {
					require.True(t, bytes.Equal(data, dst[:k]), "wrong bytes under the right sum")
				}
				cancel()
				x.set(nil)
			}
			eventually(t, func() error { _, err := put(ctx, c, 3, data); return err })
			sh.mu.Lock()
			defer sh.mu.Unlock()
			for id, got := range sh.chunks {
				require.True(t, bytes.Equal(data, got), "chunk %v holds changed bytes", id)
			}
		})
	}
}

// After a server has vanished silently, its callers close the connection after
// DeadAfter. A server that works for long stays connected.
func TestSilentServer(t *testing.T) {
	n := network{mode: transport.Insecure}
	a, sh := newAuthority(t), newShelf()
	hold := make(chan struct{})
	var gets atomic.Int32
	sh.onGet = func(ctx context.Context) error {
		first := hold
		if gets.Add(1) > 1 {
			first = nil // only the first one ever ends by itself
		}
		select {
		case <-first:
		case <-ctx.Done():
		}
		return ctx.Err()
	}
	s, _ := startServer(t, transport.ServerConfig{Addresses: []string{n.address(t)}, Mode: n.mode, Cluster: cluster,
		Role: transport.RoleChunkserver, Node: "n1", PingInterval: 50 * time.Millisecond},
		transport.ServerDeps{Handler: transport.HandlerForChunks(sh), Keys: a.keys})
	x := newProxy(t, s.Addresses()[0])
	p, err := transport.NewPool(transport.PoolConfig{Mode: n.mode, Role: transport.RoleClient, Node: "c1", DeadAfter: 500 * time.Millisecond, BulkConnections: 1},
		transport.PoolDeps{})
	require.NoError(t, err)
	defer p.Close()
	p.SetToken(a.token(t, "c1", time.Hour))
	c := p.Chunks("n1", []string{x.addr()})
	_, err = put(testContext(t), c, 1, []byte("x"))
	require.NoError(t, err)

	// Longer than DeadAfter, but the server sends pings.
	time.AfterFunc(1500*time.Millisecond, func() { close(hold) })
	_, _, err = c.Get(testContext(t), &wire.GetChunk{Stripe: 1, Length: 1}, make([]byte, 1), nil)
	require.NoError(t, err)

	block := make(chan struct{})
	x.set(func(up bool, b []byte) []byte {
		if !up {
			<-block
			return nil
		}
		return b
	})
	_, _, err = c.Get(testContext(t), &wire.GetChunk{Stripe: 1, Length: 1}, make([]byte, 1), nil)
	require.ErrorIs(t, err, moraine.Unavailable)
	require.ErrorContains(t, err, "no data received")
	close(block)
}

// Callers find a server that is restarted at the same address. In mode crc it does
// not know the keys from before the restart.
func TestServerStartsAgain(t *testing.T) {
	for _, n := range []network{{transport.Secure, true}, {transport.CRC, true}, {transport.Insecure, true}} {
		t.Run(n.String(), func(t *testing.T) {
			a, sh := newAuthority(t), newShelf()
			cfg := transport.ServerConfig{Addresses: []string{"unix:" + filepath.Join(shortDir(t), "s")}, Mode: n.mode, Cluster: cluster, Role: transport.RoleChunkserver, Node: "n1"}
			deps := transport.ServerDeps{Handler: transport.HandlerForChunks(sh), Identity: n.identity(t, a, transport.RoleChunkserver, "n1"), Keys: a.keys}
			_, stop := startServer(t, cfg, deps)
			c := n.pool(t, a, transport.RoleClient, "c1").Chunks("n1", cfg.Addresses)
			ctx := testContext(t)
			for range 3 {
				eventually(t, func() error { _, err := put(ctx, c, 1, []byte("x")); return err })
				stop()
				_, err := put(ctx, c, 1, []byte("x"))
				require.ErrorIs(t, err, moraine.Unavailable)
				_, stop = startServer(t, cfg, deps)
			}
			eventually(t, func() error { _, err := put(ctx, c, 1, []byte("x")); return err })
		})
	}
}

// A server that stops lets running requests end, and sends callers away.
func TestServerDrains(t *testing.T) {
	n := network{mode: transport.Insecure}
	a, sh := newAuthority(t), newShelf()
	began, hold := make(chan struct{}), make(chan struct{})
	sh.after = func(context.Context) error { close(began); <-hold; return nil }
	s, stop := startServer(t, transport.ServerConfig{Addresses: []string{n.address(t)}, Mode: n.mode, Cluster: cluster, Role: transport.RoleChunkserver, Node: "n1"},
		transport.ServerDeps{Handler: transport.HandlerForChunks(sh), Keys: a.keys})
	c := n.pool(t, a, transport.RoleClient, "c1").Chunks("n1", s.Addresses())
	ctx := testContext(t)
	first := make(chan error, 1)
	go func() { _, err := put(ctx, c, 1, []byte("x")); first <- err }()
	<-began
	stopped := make(chan struct{})
	go func() { stop(); close(stopped) }()
	require.Eventually(t, func() bool { // once the caller got the go-away it dials, and no server listens
		_, err := c.Sync(ctx, &wire.SyncDevices{})
		return errors.Is(err, moraine.Unavailable)
	}, 10*time.Second, time.Millisecond)
	select {
	case <-stopped:
		t.Fatal("the server stopped while a request was under way")
	default:
	}
	close(hold)
	require.NoError(t, <-first)
	<-stopped
}

// A handler that waits for a buffer blocks its connection, and no other.
func TestFlowControlBlocksOneConnection(t *testing.T) {
	for _, n := range modes() {
		t.Run(n.String(), func(t *testing.T) {
			a, sh := newAuthority(t), newShelf()
			hold := make(chan struct{})
			sh.before = func(context.Context) error { <-hold; return nil }
			s := n.serve(t, a, transport.RoleChunkserver, "n1", transport.HandlerForChunks(sh))
			c := n.pool(t, a, transport.RoleClient, "c1").Chunks("n1", s.Addresses())
			ctx := testContext(t)
			var wg sync.WaitGroup
			for i := range 8 {
				wg.Go(func() {
					if _, err := put(ctx, c, uint64(i), random(2<<20, uint64(i))); err != nil {
						t.Errorf("put %d: %v", i, err)
					}
				})
			}
			_, err := c.Stat(ctx, &wire.StatDevices{}) // over the control connection
			require.NoError(t, err)

			// A caller that cancels while its payload cannot be sent returns at
			// once.
			short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
			defer cancel()
			_, err = put(short, c, 99, random(8<<20, 99))
			require.ErrorIs(t, err, moraine.Timeout)
			close(hold)
			wg.Wait()
			sh.mu.Lock()
			defer sh.mu.Unlock()
			for i := range 8 {
				require.True(t, bytes.Equal(random(2<<20, uint64(i)), sh.chunks[moraine.ChunkID{Stripe: moraine.StripeID(i)}]))
			}
		})
	}
}

// Callers that cancel at any moment get their buffers back for good. After their
// call has returned, nothing writes to the buffers or sends from them.
func TestCancelAtAnyMoment(t *testing.T) {
	for _, n := range networks() {
		t.Run(n.String(), func(t *testing.T) {
			a, sh := newAuthority(t), newShelf()
			s := n.serve(t, a, transport.RoleChunkserver, "n1", transport.HandlerForChunks(sh))
			c := n.pool(t, a, transport.RoleClient, "c1").Chunks("n1", s.Addresses())
			ctx := testContext(t)
			const size = 512 << 10 // two pieces of a reader
			want := random(size, 1)
			_, err := put(ctx, c, 1, want)
			require.NoError(t, err)
			sum, zeros := crc.Sum(want), make([]byte, size)
			var canceled, completed atomic.Int64
			var wg sync.WaitGroup
			for g := range 6 {
				wg.Go(func() {
					r := rand.New(rand.NewPCG(uint64(g), 3))
					dst, src := make([]byte, size), bytes.Clone(want)
					for i := range 18 {
						patience := time.Microsecond << r.IntN(17)
						if i%6 == 0 {
							patience = time.Minute
						}
						short, cancel := context.WithTimeout(ctx, patience)
						var err error
						if r.IntN(2) == 0 {
							_, _, err = c.Get(short, &wire.GetChunk{Stripe: 1, Length: size}, dst, func([]byte) {})
							if err == nil && !bytes.Equal(dst, want) {
								t.Error("wrong bytes")
							}
							clear(dst) // the race detector, and the checks below, would see a write to it
							runtime.Gosched()
							if !bytes.Equal(dst, zeros) {
								t.Error("written after the call returned")
							}
						} else {
							_, err = c.Put(short, &wire.PutChunk{Stripe: uint64(g + 2), Crc: sum}, src[:size/2], src[size/2:])
							for i := 0; i < size; i += 1024 { // the race detector would see a read of it
								src[i]++
							}
							copy(src, want)
						}
						cancel()
						switch {
						case err == nil:
							completed.Add(1)
						case errors.Is(err, moraine.Timeout):
							canceled.Add(1)
						case errors.Is(err, moraine.Unavailable): // a connection was closed for a stuck write
						default:
							t.Errorf("unexpected: %v", err)
						}
					}
				})
			}
			wg.Wait()
			require.NotZero(t, canceled.Load())
			require.NotZero(t, completed.Load())
			eventually(t, func() error { _, err := put(ctx, c, 1, want); return err })
			sh.mu.Lock()
			defer sh.mu.Unlock()
			for id, got := range sh.chunks {
				require.True(t, bytes.Equal(want, got), "chunk %v is torn", id)
			}
			t.Logf("%d completed, %d gave up", completed.Load(), canceled.Load())
		})
	}
}

// The end of a caller's context, or of its connection, ends the handler's context.
func TestHandlerSeesTheEndOfItsCaller(t *testing.T) {
	n := network{mode: transport.Insecure}
	a, sh := newAuthority(t), newShelf()
	began, ended := make(chan struct{}, 1), make(chan error, 1)
	sh.onGet = func(ctx context.Context) error {
		began <- struct{}{}
		<-ctx.Done()
		ended <- ctx.Err()
		return ctx.Err()
	}
	x, c := behindProxy(t, n, a, sh)
	for name, leave := range map[string]func(cancel func()){
		"canceled":        func(cancel func()) { cancel() },
		"connection lost": func(func()) { x.cut() },
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(testContext(t))
			defer cancel()
			done := make(chan error, 1)
			go func() {
				_, _, err := c.Get(ctx, &wire.GetChunk{Stripe: 1, Length: 1}, make([]byte, 1), nil)
				done <- err
			}()
			<-began
			leave(cancel)
			require.Error(t, <-done)
			require.ErrorIs(t, <-ended, context.Canceled)
		})
	}
}

// At a connection's limit requests wait; none is refused.
func TestInFlightLimit(t *testing.T) {
	n := network{mode: transport.Insecure}
	a, sh := newAuthority(t), newShelf()
	var now, most atomic.Int32
	sh.onGet = func(context.Context) error {
		v := now.Add(1)
		for m := most.Load(); v > m && !most.CompareAndSwap(m, v); m = most.Load() {
		}
		time.Sleep(time.Millisecond)
		now.Add(-1)
		return nil
	}
	s, _ := startServer(t, transport.ServerConfig{Addresses: []string{n.address(t)}, Mode: n.mode, Cluster: cluster,
		Role: transport.RoleChunkserver, Node: "n1", MaxBulk: 3}, transport.ServerDeps{Handler: transport.HandlerForChunks(sh), Keys: a.keys})
	c := n.pool(t, a, transport.RoleClient, "c1").Chunks("n1", s.Addresses())
	ctx := testContext(t)
	_, err := put(ctx, c, 1, []byte("x"))
	require.NoError(t, err)
	var wg sync.WaitGroup
	for range 40 {
		wg.Go(func() {
			if _, _, err := c.Get(ctx, &wire.GetChunk{Stripe: 1, Length: 1}, make([]byte, 1), nil); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	require.LessOrEqual(t, most.Load(), int32(2*3), "two connections of three each")
}

// Of several addresses those that answer are used, and connections spread over
// them.
func TestSeveralAddresses(t *testing.T) {
	n := network{mode: transport.Insecure}
	a, sh := newAuthority(t), newShelf()
	sh.onGet = func(context.Context) error { time.Sleep(time.Millisecond); return nil }
	s, _ := startServer(t, transport.ServerConfig{Addresses: []string{"127.0.0.1:0", "unix:" + shortDir(t) + "/s"}, Mode: n.mode, Cluster: cluster,
		Role: transport.RoleChunkserver, Node: "n1"}, transport.ServerDeps{Handler: transport.HandlerForChunks(sh), Keys: a.keys})
	one, two := newProxy(t, s.Addresses()[0]), newProxy(t, s.Addresses()[0])
	dead, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, dead.Close())
	p := n.pool(t, a, transport.RoleClient, "c1")
	c := p.Chunks("n1", []string{one.addr(), two.addr()})
	ctx := testContext(t)
	_, err = put(ctx, c, 1, []byte("x"))
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() { c.Get(ctx, &wire.GetChunk{Stripe: 1, Length: 1}, make([]byte, 1), nil) })
		}
		wg.Wait()
		return one.count() == 1 && two.count() == 1
	}, 10*time.Second, time.Millisecond)

	_, err = put(ctx, p.Chunks("n1", []string{dead.Addr().String(), s.Addresses()[1]}), 1, []byte("x"))
	require.NoError(t, err)
	_, err = put(ctx, p.Chunks("n1", []string{dead.Addr().String()}), 1, []byte("x"))
	require.ErrorIs(t, err, moraine.Unavailable)
	_, err = put(ctx, p.Chunks("n1", nil), 1, []byte("x"))
	require.ErrorIs(t, err, moraine.Unavailable)
}

// A closed pool fails calls, including running ones.
func TestPoolCloses(t *testing.T) {
	n := network{mode: transport.Secure}
	a, sh := newAuthority(t), newShelf()
	began := make(chan struct{}, 1)
	sh.onGet = func(ctx context.Context) error { began <- struct{}{}; <-ctx.Done(); return ctx.Err() }
	s := n.serve(t, a, transport.RoleChunkserver, "n1", transport.HandlerForChunks(sh))
	p := n.pool(t, a, transport.RoleClient, "c1")
	c := p.Chunks("n1", s.Addresses())
	done := make(chan error, 1)
	go func() {
		_, _, err := c.Get(testContext(t), &wire.GetChunk{Stripe: 1, Length: 1}, make([]byte, 1), nil)
		done <- err
	}()
	<-began
	require.NoError(t, p.Close())
	require.ErrorIs(t, <-done, moraine.Unavailable)
	_, err := c.Stat(testContext(t), &wire.StatDevices{})
	require.ErrorIs(t, err, moraine.Unavailable)
	_, err = p.Chunks("n2", s.Addresses()).Stat(testContext(t), &wire.StatDevices{})
	require.ErrorIs(t, err, moraine.Unavailable)
}
