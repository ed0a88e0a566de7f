package transport_test

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// lockedBuffer is a bytes.Buffer for several goroutines.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// If all slots of a connection are taken, a call fails at its deadline, at both
// ends, with a log line at each. The connection continues.
func TestCallsDoNotWaitForSlotsBeyondTheirDeadline(t *testing.T) {
	n := network{mode: transport.Insecure}
	a := newAuthority(t)
	began, free := make(chan struct{}, 8), make(chan struct{})
	var serverLog, clientLog lockedBuffer
	s, _ := startServer(t, transport.ServerConfig{Addresses: []string{n.address(t)}, Mode: n.mode, Cluster: cluster, Role: transport.RoleMetadata,
		Node: "m1", MaxControl: 1}, transport.ServerDeps{Keys: a.keys, Log: slog.New(slog.NewTextHandler(&serverLog, nil)),
		Handler: transport.HandlerForMetadata(clerk(func(ctx context.Context, req *wire.MetaRequest) (*wire.MetaResponse, error) {
			began <- struct{}{}
			<-free
			return &wire.MetaResponse{}, nil
		}))})
	// A caller that does not count its running requests.
	nc, err := net.Dial("tcp", s.Addresses()[0])
	require.NoError(t, err)
	defer nc.Close() //nolint:errcheck // the test is over
	_, err = transport.RawHello(nc, &wire.Hello{MinVersion: 1, MaxVersion: 1, Class: uint32(transport.Control), Role: string(transport.RoleClient), Node: "c1", Scope: "/"})
	require.NoError(t, err)
	for id, millis := range []uint32{60_000, 50} {
		_, err = nc.Write(transport.EncodeFrame(transport.Header{Class: transport.Control, Kind: transport.KindMeta, ID: uint64(id), Deadline: millis}, &wire.MetaRequest{}))
		require.NoError(t, err)
	}
	within(t, began)
	h, message := readRawFrame(t, nc)
	require.EqualValues(t, 1, h.ID)
	var e wire.Error
	require.NoError(t, proto.Unmarshal(message, &e))
	require.Equal(t, moraine.Timeout, moraine.KindOf(transport.ErrorFromWire(&e)))
	require.Equal(t, 1, strings.Count(serverLog.String(), "resource wait exceeded"), serverLog.String())

	// A caller that does waits at its own end.
	p, err := transport.NewPool(transport.PoolConfig{Mode: n.mode, Cluster: cluster, Role: transport.RoleClient, Node: "c2"},
		transport.PoolDeps{Log: slog.New(slog.NewTextHandler(&clientLog, nil))})
	require.NoError(t, err)
	defer p.Close() //nolint:errcheck // the test is over
	meta := p.Metadata(s.Addresses())
	first := make(chan error, 1)
	go func() {
		_, err := meta.Do(t.Context(), &wire.MetaRequest{})
		first <- err
	}()
	within(t, began)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = meta.Do(ctx, &wire.MetaRequest{})
	require.Equal(t, moraine.Timeout, moraine.KindOf(err), err)
	require.Equal(t, 1, strings.Count(clientLog.String(), "resource wait exceeded"), clientLog.String())
	close(free)
	require.NoError(t, within(t, first))
	_, err = meta.Do(t.Context(), &wire.MetaRequest{})
	require.NoError(t, err)
	h, _ = readRawFrame(t, nc)
	require.EqualValues(t, 0, h.ID)
}

// readRawFrame reads the next frame that is no ping.
func readRawFrame(t *testing.T, nc net.Conn) (transport.Header, []byte) {
	t.Helper()
	require.NoError(t, nc.SetReadDeadline(time.Now().Add(time.Minute)))
	for {
		b := make([]byte, transport.HeaderLen)
		_, err := io.ReadFull(nc, b)
		require.NoError(t, err)
		h, _, err := transport.DecodeHeader(b)
		require.NoError(t, err)
		message := make([]byte, h.MessageLen)
		_, err = io.ReadFull(nc, message)
		require.NoError(t, err)
		if h.Kind != transport.KindPing {
			return h, message
		}
	}
}

// A request without a deadline, or with one of weeks, ends within the hour: what it waits for is
// bounded, whatever the caller sends.
func TestARequestWithoutADeadlineEnds(t *testing.T) {
	n := network{mode: transport.Insecure}
	deadlines := make(chan time.Duration, 8)
	s, _ := startServer(t, transport.ServerConfig{Addresses: []string{n.address(t)}, Mode: n.mode, Cluster: cluster, Role: transport.RoleMetadata, Node: "m1"},
		transport.ServerDeps{Handler: transport.HandlerForMetadata(clerk(func(ctx context.Context, req *wire.MetaRequest) (*wire.MetaResponse, error) {
			end, ok := ctx.Deadline()
			if !ok {
				end = time.Now().Add(24 * time.Hour)
			}
			deadlines <- time.Until(end)
			return &wire.MetaResponse{}, nil
		}))})
	nc, err := net.Dial("tcp", s.Addresses()[0])
	require.NoError(t, err)
	defer nc.Close() //nolint:errcheck // the test is over
	_, err = transport.RawHello(nc, &wire.Hello{MinVersion: 1, MaxVersion: 1, Class: uint32(transport.Control), Role: string(transport.RoleClient), Node: "c1", Scope: "/"})
	require.NoError(t, err)
	for id, millis := range []uint32{0, 1 << 31, 10_000} {
		_, err = nc.Write(transport.EncodeFrame(transport.Header{Class: transport.Control, Kind: transport.KindMeta, ID: uint64(id), Deadline: millis}, &wire.MetaRequest{}))
		require.NoError(t, err)
		most := time.Hour
		if millis == 10_000 {
			most = 10 * time.Second
		}
		require.LessOrEqual(t, within(t, deadlines), most)
	}
}
