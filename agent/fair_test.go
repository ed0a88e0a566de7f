package agent_test

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/agent"
	"github.com/morainefs/moraine/client/ckpt/agentproto"
	"github.com/morainefs/moraine/client/ckpt/agentproto/fileproto"
)

// beginAt asks an agent for memory of one part of a run, over a connection of its own.
func beginAt(t *testing.T, socket, run string, sealTimeout time.Duration) error {
	t.Helper()
	c, err := agentproto.Dial(t.Context(), socket)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() }) // its answer is all that the test needs
	_, _, err = c.Exchange(t.Context(), &agentproto.Request{Open: &agentproto.Open{Run: run, World: 1, Launch: "one"}})
	require.NoError(t, err)
	_, _, err = c.Exchange(t.Context(), &agentproto.Request{Begin: &agentproto.Begin{Step: 1, Bytes: partBytes, SealTimeoutMillis: sealTimeout.Milliseconds()}})
	return err
}

// TestASaveWaitsForReaders: a save that finds the memory with readers of files waits for it until its
// deadline, and then fails with an error that says who has it.
func TestASaveWaitsForReaders(t *testing.T) {
	n := newNode(t, slotBytes)
	n.start(0)
	reader := n.filePeer()
	require.NoError(t, reader.write("/f", data(1, 0), partBytes, false))
	_, _, err := reader.ask(agentproto.Request{FetchFile: &fileproto.FetchFile{Path: "/f", Bytes: slotBytes}})
	require.NoError(t, err)
	err = beginAt(t, n.socket(), "/runs/short", 20*time.Millisecond)
	require.ErrorIs(t, err, moraine.NoSpace)
	require.ErrorContains(t, err, "readers of files and steps have")

	got := make(chan error, 1)
	go func() { got <- beginAt(t, n.socket(), runPath, time.Minute) }()
	select {
	case err := <-got:
		t.Fatalf("the save did not wait: %v", err)
	case <-time.After(200 * time.Millisecond):
	}
	require.NoError(t, reader.c.Close())
	require.NoError(t, <-got)
}

// TestAnotherUserGetsAShare: a user who takes as many connections as the agent gives, and all of its
// memory, keeps another user from neither. A last good part in memory gives way.
func TestAnotherUserGetsAShare(t *testing.T) {
	if socket := os.Getenv("MORAINE_TEST_AGENT_SOCKET"); socket != "" {
		require.NoError(t, beginAt(t, socket, "/runs/other", time.Minute))
		return
	}
	requireRoot(t)
	n := newNode(t, slotBytes)
	n.config.Users = []uint32{65534}
	n.start(0)
	tr := n.trainer("one", 0, 1)
	p := tr.save(1, 0)
	_, err := p.Wait(t.Context(), moraine.NVMe)
	require.NoError(t, err)
	require.Equal(t, int64(slotBytes), n.used(), "the last good part has all of the memory")
	var conns []*agentproto.Conn
	defer func() {
		for _, c := range conns {
			_ = c.Close() // no request was sent
		}
	}()
	for len(conns) < agent.MaxConns {
		c, err := agentproto.Dial(t.Context(), n.socket())
		if err != nil {
			break
		}
		conns = append(conns, c)
	}
	require.Less(t, len(conns), agent.MaxConns/2+1)
	require.Greater(t, len(conns), agent.MaxConns/2-20)

	n.asAnotherUser()
}
