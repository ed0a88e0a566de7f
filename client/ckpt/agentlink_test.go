package ckpt

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt/agentproto"
)

// fakeAgent answers hello, open and begin. The slot of its first begin cannot be mapped.
func fakeAgent(t *testing.T, socket string) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	begins := 0
	serve := func(c *agentproto.Conn) {
		defer c.Close()
		filling := false
		for {
			var req agentproto.Request
			if _, err := c.Receive(&req); err != nil {
				return
			}
			reply, files := &agentproto.Reply{Hello: &agentproto.HelloReply{Version: 1}}, []*os.File(nil)
			switch {
			case req.Open != nil:
				reply = &agentproto.Reply{Open: &agentproto.OpenReply{Attempt: 1}}
			case req.Begin != nil && filling:
				reply = &agentproto.Reply{Error: &agentproto.Error{Kind: moraine.InvalidArgument.String(), Text: "a step has not been sealed yet"}}
			case req.Begin != nil:
				begins++
				filling = true
				fd, err := unix.MemfdCreate("slot", 0)
				if err != nil || unix.Ftruncate(fd, 1<<20) != nil {
					return
				}
				bytes := int64(1 << 20)
				if begins == 1 {
					bytes = 0
				}
				files = []*os.File{os.NewFile(uintptr(fd), "slot")}
				reply = &agentproto.Reply{Begin: &agentproto.BeginReply{Slot: "slot-1", Bytes: bytes}}
			}
			if c.Send(reply, files...) != nil {
				return
			}
			closeFiles(files)
		}
	}
	go func() {
		for {
			c, err := l.AcceptUnix()
			if err != nil {
				return
			}
			serve(agentproto.NewConn(c)) // one after the other
		}
	}()
}

// linkToFake returns a link to an agent of fakeAgent.
func linkToFake(t *testing.T) *agentLink {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	fakeAgent(t, socket)
	l, _, err := dialAgent(t.Context(), socket, agentproto.Open{Run: "/runs/a"})
	require.NoError(t, err)
	t.Cleanup(l.close)
	return l
}

// TestASlotThatCannotBeMappedDoesNotStopTheNextSave: the agent refuses a begin on a connection that has begun.
func TestASlotThatCannotBeMappedDoesNotStopTheNextSave(t *testing.T) {
	l := linkToFake(t)
	_, _, err := l.begin(t.Context(), agentproto.Begin{Step: 1, Bytes: 1})
	require.ErrorIs(t, err, moraine.NoSpace)
	mem, _, err := l.begin(t.Context(), agentproto.Begin{Step: 1, Bytes: 1})
	require.NoError(t, err)
	require.Len(t, mem, 1<<20)
}

// TestMemoryOfAForgottenSlotIsUsable: a copy that is under way when the agent goes does no harm, and nobody gets it.
func TestMemoryOfAForgottenSlotIsUsable(t *testing.T) {
	l := linkToFake(t)
	_, _, err := l.begin(t.Context(), agentproto.Begin{Step: 1, Bytes: 1})
	require.Error(t, err)
	first, _, err := l.begin(t.Context(), agentproto.Begin{Step: 1, Bytes: 1})
	require.NoError(t, err)
	copy(first, "first")
	l.mu.Lock()
	l.disconnect()
	l.mu.Unlock()
	require.Equal(t, make([]byte, 5), first[:5])
	copy(first, "other")
	second, _, err := l.begin(t.Context(), agentproto.Begin{Step: 1, Bytes: 1})
	require.NoError(t, err)
	require.Equal(t, make([]byte, 5), second[:5])
	for range 3 * keptMappings { // the memory is pushed out
		l.mu.Lock()
		l.disconnect()
		l.mu.Unlock()
		_, _, err = l.begin(t.Context(), agentproto.Begin{Step: 1, Bytes: 1})
		require.NoError(t, err)
	}
	require.Len(t, l.mapped, keptMappings)
	require.False(t, slices.ContainsFunc(l.mapped[:keptMappings-1], func(m mapping) bool { return m.slot != "" }))
}
