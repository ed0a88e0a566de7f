package agent_test

import (
	"bytes"
	"encoding/binary"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/agent"
	"github.com/morainefs/moraine/client/ckpt/agentproto"
)

// half sends the head of a large frame, and no more.
func (n *node) half(bytes uint32) net.Conn {
	n.t.Helper()
	c, err := net.Dial("unix", n.socket())
	require.NoError(n.t, err)
	n.t.Cleanup(func() { _ = c.Close() })
	_, _, err = agentproto.NewConn(c.(*net.UnixConn)).Exchange(n.t.Context(), &agentproto.Request{Hello: &agentproto.Hello{Version: agentproto.Version}})
	require.NoError(n.t, err)
	_, err = c.Write(binary.LittleEndian.AppendUint32(nil, bytes))
	require.NoError(n.t, err)
	return c
}

// TestLargeRequestsWaitForEachOther: connections that send only the heads of large frames take no memory without bound.
// Small requests do not wait for them, and another user's large ones do not either.
func TestLargeRequestsWaitForEachOther(t *testing.T) {
	n := newNode(t, 64<<20)
	n.start(0)
	var halves []net.Conn
	for range agent.FrameMemory / 2 / agentproto.MaxFrame {
		halves = append(halves, n.half(agentproto.MaxFrame))
	}
	require.Eventually(t, func() bool { return n.a.FramesOf(0) == agent.FrameMemory/2 }, time.Minute, time.Millisecond)
	p := n.stranger()
	require.NoError(t, p.ask(&agentproto.Request{Status: &agentproto.Status{}}))
	large := &agentproto.Request{Seal: &agentproto.Seal{Blobs: []agentproto.Blob{{Name: strings.Repeat("a", 1<<20)}}}}
	answer := make(chan error, 1)
	go func() { answer <- p.ask(large) }()
	select {
	case err := <-answer:
		require.NoError(t, err)
		t.Fatal("it did not wait")
	case <-time.After(50 * time.Millisecond):
	}
	require.NoError(t, halves[0].Close())
	require.ErrorContains(t, <-answer, "not between begin and seal")
	for _, c := range halves {
		_ = c.Close()
	}
	require.Eventually(t, func() bool { return n.a.FramesOf(0) == 0 }, time.Minute, time.Millisecond)
}

// TestOnlySealsAndFetchesAreLarge: of other requests many may wait at a time. The connection goes on.
func TestOnlySealsAndFetchesAreLarge(t *testing.T) {
	n := newNode(t, 64<<20)
	n.start(0)
	p := n.peer(runPath, "one", 1)
	err := p.ask(&agentproto.Request{Wait: &agentproto.Wait{Run: strings.Repeat("a", 100<<10)}})
	require.ErrorIs(t, err, moraine.InvalidArgument)
	require.ErrorContains(t, err, "no seal")
	require.NoError(t, p.begin(1, 1<<20))
	seal := &agentproto.Seal{Step: 1, Tensors: make([]agentproto.Tensor, 200_001)}
	err = p.ask(&agentproto.Request{Seal: seal})
	require.ErrorIs(t, err, moraine.InvalidArgument)
	require.ErrorContains(t, err, "200001 entries; 200000 at most")
	require.NoError(t, p.seal(1, 1<<20))
	require.Zero(t, n.a.FramesOf(0))
}

// TestNobodyFloodsTheLog: of the broken connections of a user the log has one line a minute, and the metric all.
func TestNobodyFloodsTheLog(t *testing.T) {
	n := newNode(t, 64<<20)
	var lines bytes.Buffer
	n.log, n.metrics = slog.New(slog.NewTextHandler(&lines, nil)), agent.NewMetrics(nil)
	n.start(0)
	for range 20 {
		n.half(agentproto.MaxFrame + 1)
	}
	n.eventually(func() bool { return count(t, n.metrics.BrokenConns) == 20 })
	require.NoError(t, n.stop())
	require.Equal(t, 1, strings.Count(lines.String(), "connection ended"), lines.String())
}
