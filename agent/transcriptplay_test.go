package agent_test

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/client/ckpt/agentproto"
	"github.com/morainefs/moraine/client/ckpt/safetensors"
)

// TestGoldenTranscript: a real agent has the dialogues of the golden transcript, frame by frame. The Go
// client has its own, through a relay that sees its frames. The test plays the others itself. That the
// Python package sends what they say: python/tests/test_transcript.py.
func TestGoldenTranscript(t *testing.T) {
	n := newNode(t, 3*slotBytes)
	n.start(time.Minute)
	speakers := map[string]int{}
	for _, d := range readTranscript(t) {
		speakers[d.speaker]++
		if d.speaker == "go" {
			n.goTrainer(d)
			continue
		}
		n.play(d)
	}
	require.Equal(t, 1, speakers["go"])
	require.GreaterOrEqual(t, speakers["python"], 3)
	require.GreaterOrEqual(t, speakers["any"], 1)
	require.NoError(t, n.stop())
}

// played is a connection of a dialogue, with the descriptor that came last.
type played struct {
	c    *net.UnixConn
	slot *os.File
}

// play has the client's side of a dialogue. It reports all frames that differ.
func (n *node) play(d dialogue) {
	n.t.Helper()
	conns, b := map[string]*played{}, bindings{}
	defer func() {
		for _, p := range conns {
			_ = p.c.Close()
			_ = p.slot.Close() // nil is an error that nobody needs
		}
	}()
	for _, e := range d.events {
		p := conns[e.conn]
		switch e.kind {
		case "connects":
			c, err := net.Dial("unix", n.socket())
			require.NoError(n.t, err)
			conns[e.conn] = &played{c: c.(*net.UnixConn)}
		case ">":
			body, err := b.fill(e.body)
			require.NoError(n.t, err, "line %d", e.line)
			frame := frameOf(body)
			require.NoError(n.t, e.check(b, frame, 0), "line %d", e.line)
			_, err = p.c.Write(frame)
			require.NoError(n.t, err, "line %d", e.line)
		case "<":
			frame, files, err := readFrame(p.c)
			require.NoError(n.t, err, "line %d", e.line)
			if err := e.check(b, frame, len(files)); err != nil {
				n.t.Errorf("%s, line %d: %v", d.title, e.line, err)
			}
			p.keep(files)
		case "writes":
			_, err := p.slot.WriteAt(e.data, e.at)
			require.NoError(n.t, err, "line %d", e.line)
		case "reads":
			got := make([]byte, len(e.data))
			_, err := p.slot.ReadAt(got, e.at)
			require.NoError(n.t, err, "line %d", e.line)
			require.Equal(n.t, e.data, got, "line %d", e.line)
		case "closes":
			require.NoError(n.t, p.c.Close())
		}
	}
}

// keep replaces the descriptor that came last.
func (p *played) keep(files []*os.File) {
	for _, f := range files {
		_ = p.slot.Close() // nil is an error that nobody needs
		p.slot = f
	}
}

// readFrame reads one frame, with its length, and its descriptors.
func readFrame(c *net.UnixConn) (frame []byte, files []*os.File, err error) {
	if err := c.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		return nil, nil, err
	}
	frame = make([]byte, 4)
	oob := make([]byte, unix.CmsgSpace(16))
	k, oobn, _, _, err := c.ReadMsgUnix(frame, oob)
	if err == nil && k == 0 {
		err = io.EOF
	}
	if err != nil {
		return nil, nil, err
	}
	msgs, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil {
		return nil, nil, err
	}
	for i := range msgs {
		fds, err := unix.ParseUnixRights(&msgs[i])
		if err != nil {
			return nil, nil, err
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "slot"))
		}
	}
	if _, err := io.ReadFull(c, frame[k:]); err != nil {
		return nil, files, err
	}
	body := make([]byte, binary.LittleEndian.Uint32(frame))
	_, err = io.ReadFull(c, body)
	return append(frame, body...), files, err
}

// goTrainer saves and restores with the Go client, as the dialogue says.
func (n *node) goTrainer(d dialogue) {
	n.t.Helper()
	r := n.relayOf(d, n.socket()+"-relay")
	defer r.end()
	ctx, cancel := context.WithTimeout(n.t.Context(), 2*time.Minute)
	defer cancel()
	c, err := n.client(ctx)
	require.NoError(n.t, err)
	defer c.Kill()
	run, err := ckpt.OpenRun(ctx, c.Client, "/runs/go", ckpt.RunOptions{Launch: ckpt.Launch{Name: "one"}, World: 1, Agent: n.socket() + "-relay"})
	require.NoError(n.t, err)
	defer run.Close(ctx)

	part, err := run.Begin(ctx, 1, ckpt.BeginOptions{Bytes: 100})
	require.NoError(n.t, err)
	require.NoError(n.t, part.AddTensor(ctx, ckpt.Tensor{Name: "w", DType: safetensors.U8, Shape: []int64{5}, Data: []byte("hello")}))
	require.NoError(n.t, part.AddBlob(ctx, "rng", []byte("seed")))
	require.NoError(n.t, part.Seal(ctx))
	_, err = part.Wait(ctx, moraine.NVMe)
	require.NoError(n.t, err)
	n.eventually(func() bool { return n.states()[1] == agentproto.Committed }) // the agent learns it by itself
	_, _, err = part.Progress(ctx)
	require.NoError(n.t, err)

	k, err := run.Resolve(ctx, ckpt.ResolveOptions{Step: 1, Exact: true})
	require.NoError(n.t, err)
	got, err := k.ReadTensor(ctx, "w")
	require.NoError(n.t, err)
	require.Equal(n.t, "hello", string(got))
	require.Positive(n.t, k.NodeBytes())
	require.NoError(n.t, k.Close())

	part, err = run.Begin(ctx, 2, ckpt.BeginOptions{Bytes: 100})
	require.NoError(n.t, err)
	part.Abort(errors.New("no more"))
	<-part.Done()
}
