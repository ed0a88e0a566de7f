package memnet_test

import (
	"context"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/memnet"
	"github.com/morainefs/moraine/transport/wire"
	"github.com/stretchr/testify/require"
)

// counter answers every request with the number of requests it has served.
type counter struct {
	served atomic.Uint64
	hold   chan struct{} // if not nil, a request waits for it
}

func (c *counter) Do(ctx context.Context, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	n := c.served.Add(1)
	if c.hold != nil {
		select {
		case <-c.hold:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return &wire.MetaResponse{Result: &wire.MetaResponse_Topology{Topology: &wire.Topology{Version: n}}}, nil
}

// pair is a server m1 and a client c1.
func pair(t *testing.T) (*memnet.Net, *memnet.Node, *counter, transport.Metadata) {
	n := memnet.New(1)
	c := &counter{}
	node, err := n.Listen("m1", memnet.Options{Role: transport.RoleMetadata, Handler: transport.HandlerForMetadata(c)})
	require.NoError(t, err)
	d := n.Dialer(transport.Peer{Role: transport.RoleClient, Node: "c1"})
	t.Cleanup(func() { require.NoError(t, node.Close()); n.Wait() })
	return n, node, c, d.Metadata([]string{memnet.Address("m1")})
}

func TestLostRequestTakesNoEffect(t *testing.T) {
	n, _, c, m := pair(t)
	n.SetFaults("c1", "m1", memnet.Faults{LoseRequest: 1})
	_, err := m.Do(t.Context(), &wire.MetaRequest{})
	require.ErrorIs(t, err, moraine.Unavailable)
	require.Zero(t, c.served.Load())
	n.Heal()
	_, err = m.Do(t.Context(), &wire.MetaRequest{})
	require.NoError(t, err)
}

func TestLostReplyTookEffect(t *testing.T) {
	n, _, c, m := pair(t)
	n.SetFaults("m1", "*", memnet.Faults{LoseReply: 1})
	_, err := m.Do(t.Context(), &wire.MetaRequest{})
	require.ErrorIs(t, err, moraine.Unavailable)
	require.EqualValues(t, 1, c.served.Load())
}

func TestOneWayCuts(t *testing.T) {
	n, _, c, m := pair(t)
	n.Cut("m1", "c1") // requests arrive, replies do not
	_, err := m.Do(t.Context(), &wire.MetaRequest{})
	require.ErrorIs(t, err, moraine.Unavailable)
	served := c.served.Load()
	require.LessOrEqual(t, served, uint64(1))
	n.Rejoin("m1", "*")
	n.Cut("c1", "m1") // requests do not arrive
	_, err = m.Do(t.Context(), &wire.MetaRequest{})
	require.ErrorIs(t, err, moraine.Unavailable)
	require.Equal(t, served, c.served.Load())
}

func TestPartitionEndsWhatIsUnderWay(t *testing.T) {
	n, _, c, m := pair(t)
	c.hold = make(chan struct{})
	done := make(chan error, 1)
	go func() {
		_, err := m.Do(t.Context(), &wire.MetaRequest{})
		done <- err
	}()
	require.Eventually(t, func() bool { return c.served.Load() == 1 }, 5*time.Second, time.Millisecond)
	n.Isolate("m1")
	require.ErrorIs(t, <-done, moraine.Unavailable)
}

func TestCrash(t *testing.T) {
	n, node, c, m := pair(t)
	c.hold = make(chan struct{})
	done := make(chan error, 1)
	go func() {
		_, err := m.Do(t.Context(), &wire.MetaRequest{})
		done <- err
	}()
	require.Eventually(t, func() bool { return c.served.Load() == 1 }, 5*time.Second, time.Millisecond)
	require.NoError(t, node.Close())
	require.ErrorIs(t, <-done, moraine.Unavailable)
	_, err := m.Do(t.Context(), &wire.MetaRequest{})
	require.ErrorIs(t, err, moraine.Unavailable)
	again, err := n.Listen("m1", memnet.Options{Role: transport.RoleMetadata, Handler: transport.HandlerForMetadata(&counter{})})
	require.NoError(t, err)
	defer again.Close()
	_, err = m.Do(t.Context(), &wire.MetaRequest{})
	require.NoError(t, err)
}

func TestDelayAndDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, _, c, m := pair(t)
		n.SetFaults("*", "*", memnet.Faults{MinDelay: time.Second, MaxDelay: 2 * time.Second})
		start := time.Now()
		_, err := m.Do(t.Context(), &wire.MetaRequest{})
		require.NoError(t, err)
		took := time.Since(start)
		require.GreaterOrEqual(t, took, 2*time.Second)
		require.LessOrEqual(t, took, 4*time.Second)

		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		_, err = m.Do(ctx, &wire.MetaRequest{})
		require.ErrorIs(t, err, moraine.Timeout)
		require.EqualValues(t, 1, c.served.Load())
	})
}

// The same seed and order of calls produce the same faults.
func TestSeedDecides(t *testing.T) {
	fates := func(seed uint64) (f []bool) {
		n := memnet.New(seed)
		n.DetectAfter(0)
		node, err := n.Listen("m1", memnet.Options{Role: transport.RoleMetadata, Handler: transport.HandlerForMetadata(&counter{})})
		require.NoError(t, err)
		defer node.Close()
		n.SetFaults("*", "*", memnet.Faults{LoseRequest: 0.3, LoseReply: 0.3})
		m := n.Dialer(transport.Peer{Role: transport.RoleClient, Node: "c1"}).Metadata([]string{"m1"})
		for range 64 {
			_, err := m.Do(t.Context(), &wire.MetaRequest{})
			f = append(f, err == nil)
		}
		return f
	}
	require.Equal(t, fates(1), fates(1))
	require.NotEqual(t, fates(1), fates(2))
}

func TestServerOfAnotherRoleOrNameIsRefused(t *testing.T) {
	n, _, _, _ := pair(t)
	d := n.Dialer(transport.Peer{Role: transport.RoleClient, Node: "c1"})
	_, err := d.Chunks("m1", []string{"mem:m1"}).Stat(t.Context(), &wire.StatDevices{})
	require.ErrorIs(t, err, moraine.PermissionDenied)
	_, err = d.Metadata([]string{"mem:nobody"}).Do(t.Context(), &wire.MetaRequest{})
	require.ErrorIs(t, err, moraine.Unavailable)
	require.NoError(t, d.Close())
	_, err = d.Metadata([]string{"mem:m1"}).Do(t.Context(), &wire.MetaRequest{})
	require.ErrorIs(t, err, moraine.Unavailable)
}

// streams returns both ends of a raft connection.
func streams(t *testing.T) (n *memnet.Net, a, b *memnet.Node, near, far net.Conn) {
	n = memnet.New(1)
	a, err := n.Listen("m1", memnet.Options{Role: transport.RoleMetadata})
	require.NoError(t, err)
	b, err = n.Listen("m2", memnet.Options{Role: transport.RoleMetadata})
	require.NoError(t, err)
	t.Cleanup(func() { a.Close(); b.Close() })
	l := b.RaftListener()
	require.Equal(t, "mem:m2", l.Addr().String())
	accepted := make(chan net.Conn, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			accepted <- c
		}
	}()
	near, err = a.DialRaft("mem:m2", 5*time.Second)
	require.NoError(t, err)
	return n, a, b, near, <-accepted
}

func TestRaftStream(t *testing.T) {
	n, _, b, near, far := streams(t)
	sent := make([]byte, 3<<20) // more than the pipe holds
	for i := range sent {
		sent[i] = byte(i * 7)
	}
	go near.Write(sent)
	got := make([]byte, len(sent))
	_, err := io.ReadFull(far, got)
	require.NoError(t, err)
	require.Equal(t, sent, got)

	require.NoError(t, near.SetReadDeadline(time.Now().Add(time.Millisecond)))
	_, err = near.Read(got)
	var ne net.Error
	require.ErrorAs(t, err, &ne)
	require.True(t, ne.Timeout())
	require.NoError(t, near.SetReadDeadline(time.Time{}))

	// A partition delays bytes; after healing they continue.
	n.Partition("m1", "m2")
	_, err = near.Write([]byte("late"))
	require.NoError(t, err)
	require.NoError(t, far.SetReadDeadline(time.Now().Add(10*time.Millisecond)))
	_, err = far.Read(got)
	require.Error(t, err)
	require.NoError(t, far.SetReadDeadline(time.Time{}))
	n.Heal()
	k, err := far.Read(got)
	require.NoError(t, err)
	require.Equal(t, "late", string(got[:k]))

	require.NoError(t, near.Close())
	_, err = far.Read(got)
	require.Equal(t, io.EOF, err)
	_, err = far.Write([]byte("x"))
	require.Error(t, err)
	require.NoError(t, b.Close())
}

func TestRaftDialFails(t *testing.T) {
	n, a, b, near, _ := streams(t)
	n.Cut("m2", "m1")
	_, err := a.DialRaft("mem:m2", time.Second)
	require.ErrorIs(t, err, moraine.Unavailable)
	n.Heal()
	require.NoError(t, b.Close())
	_, err = near.Read(make([]byte, 1))
	require.Error(t, err)
	_, err = a.DialRaft("mem:m2", time.Second)
	require.ErrorIs(t, err, moraine.Unavailable)
}
