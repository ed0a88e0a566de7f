package agent_test

import (
	"context"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/agent"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/client/ckpt/agentproto"
	"github.com/morainefs/moraine/integration/incluster"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// peer is a trainer in another language: it speaks the protocol, and writes no sums.
type peer struct {
	n    *node
	conn *agentproto.Conn
}

func (n *node) peer(run, launch string, world uint32) *peer {
	n.t.Helper()
	p := n.stranger()
	require.NoError(n.t, p.ask(&agentproto.Request{Open: &agentproto.Open{Run: run, World: world, Launch: launch}}))
	return p
}

// peerOf is peer of a rank.
func (n *node) peerOf(run, launch string, rank, world uint32) *peer {
	n.t.Helper()
	p := n.stranger()
	require.NoError(n.t, p.ask(&agentproto.Request{Open: &agentproto.Open{Run: run, Rank: rank, World: world, Launch: launch}}))
	return p
}

// stranger is a peer that has opened nothing.
func (n *node) stranger() *peer {
	n.t.Helper()
	conn, err := agentproto.Dial(n.t.Context(), n.socket())
	require.NoError(n.t, err)
	n.t.Cleanup(func() { _ = conn.Close() })
	return &peer{n, conn}
}

func (p *peer) ask(req *agentproto.Request) error {
	_, files, err := p.conn.Exchange(p.n.t.Context(), req)
	for _, f := range files {
		_ = f.Close()
	}
	return err
}

func (p *peer) begin(step uint64, bytes int64) error {
	return p.ask(&agentproto.Request{Begin: &agentproto.Begin{Step: step, Bytes: bytes}})
}

func (p *peer) seal(step uint64, bytes int64) error {
	return p.ask(&agentproto.Request{Seal: &agentproto.Seal{Step: step, Tensors: []agentproto.Tensor{
		{Name: "w0", DType: "U8", Shape: []int64{bytes}, Bytes: bytes}}}})
}

// wait waits until a step is committed.
func (n *node) wait(step uint64) error {
	_, err := agentproto.Ask(n.t.Context(), n.socket(), &agentproto.Request{Wait: &agentproto.Wait{Run: runPath, Attempt: 1, Step: step, Level: "nvme", TimeoutMillis: 60_000}})
	return err
}

func (n *node) used() int64 {
	n.t.Helper()
	reply, err := agentproto.Ask(n.t.Context(), n.socket(), &agentproto.Request{Status: &agentproto.Status{}})
	require.NoError(n.t, err)
	return reply.Status.Used
}

// holdSeals lets no part be sealed in the cluster, for clients that come from now on.
func holdSeals(d transport.Dialer) transport.Dialer {
	return incluster.Through(d, func(ctx context.Context, m transport.Metadata, req *wire.MetaRequest) (*wire.MetaResponse, error) {
		if req.GetSealPart() != nil {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return m.Do(ctx, req)
	})
}

// TestAnAgentEndsWhileTheClusterDoesNotAnswer: the agent does not wait for the cluster longer than
// its grace, and its end aborts no step: the next agent writes the part, also while a trainer fills
// the next one.
func TestAnAgentEndsWhileTheClusterDoesNotAnswer(t *testing.T) {
	n := newNode(t, 6<<20)
	n.wrap = holdSeals
	n.start(100 * time.Millisecond)
	p := n.peer(runPath, "one", 1)
	require.NoError(t, p.begin(1, 1<<20))
	require.NoError(t, p.seal(1, 1<<20))
	began := time.Now()
	err := n.stop()
	require.ErrorIs(t, err, moraine.Incomplete)
	require.Less(t, time.Since(began), 10*time.Second)
	n.wrap = nil
	n.start(time.Minute)
	p = n.peer(runPath, "one", 1)
	require.NoError(t, p.begin(2, 1<<20))
	require.NoError(t, n.wait(1))
	require.NoError(t, p.seal(2, 1<<20))
	require.NoError(t, n.wait(2))
	require.NoError(t, n.stop())
}

// TestASaveBeginsWhileTheOneBeforeIsRead: a trainer may begin the next step as soon as the agent
// has answered its seal, and learns how each one ended.
func TestASaveBeginsWhileTheOneBeforeIsRead(t *testing.T) {
	n := newNode(t, 64<<20)
	n.start(time.Minute)
	p := n.peer(runPath, "one", 1)
	const bytes = 8 << 20
	for step := uint64(1); step <= 4; step++ {
		require.NoError(t, p.begin(step, bytes))
		require.NoError(t, p.seal(step, bytes))
	}
	for _, step := range []uint64{4, 3, 2, 1} {
		require.NoError(t, n.wait(step), step)
	}
	require.ErrorIs(t, p.begin(1, bytes), moraine.Exists)
	require.NoError(t, n.stop())

	n.start(time.Minute) // it has the last good part only
	p = n.peer(runPath, "one", 1)
	require.NoError(t, p.begin(1, bytes))
	require.NoError(t, p.seal(1, bytes))
	require.ErrorIs(t, n.wait(1), moraine.Exists, "the step has other bytes")
}

// TestATrainerThatDiesWhileItWaitsLeavesNothing: a trainer that waits for memory and dies keeps
// neither its run nor its step.
func TestATrainerThatDiesWhileItWaitsLeavesNothing(t *testing.T) {
	n := newNode(t, 2<<20)
	n.start(0)
	a := n.peer(runPath, "one", 2)
	require.NoError(t, a.begin(1, 1<<20))
	require.NoError(t, a.seal(1, 1<<20)) // rank 1 never does
	b := n.peer("/runs/b", "one", 1)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, _, err := b.conn.Exchange(ctx, &agentproto.Request{Begin: &agentproto.Begin{Step: 1, Bytes: 1 << 20}})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Eventually(t, func() bool { return len(n.states()) == 1 }, 10*time.Second, 10*time.Millisecond)
	n.peer("/runs/b", "two", 1) // not Busy
}

// TestCloseEndsABeginThatWaits: a run can be closed while Begin waits for memory.
func TestCloseEndsABeginThatWaits(t *testing.T) {
	n := newNode(t, slotBytes)
	n.start(0)
	tr := n.trainer("one", 0, 2)
	tr.save(1, 0)
	began := make(chan error)
	go func() {
		_, err := tr.run.Begin(context.Background(), 2, ckpt.BeginOptions{Bytes: partBytes})
		began <- err
	}()
	time.Sleep(100 * time.Millisecond) // until it waits; if it does not yet, Begin fails as well
	require.NoError(t, tr.run.Close(t.Context()))
	require.Error(t, <-began)
}

// TestARestoreGivesItsMemoryBack: once a trainer saves, neither the slot of its last fetch counts
// nor does the agent keep the slots of the step that was restored.
func TestARestoreGivesItsMemoryBack(t *testing.T) {
	n := newNode(t, 64<<20)
	n.start(time.Minute)
	p := n.peer(runPath, "one", 1)
	require.NoError(t, p.begin(1, 1<<20))
	require.NoError(t, p.seal(1, 1<<20))
	require.NoError(t, n.wait(1))
	require.NoError(t, p.ask(&agentproto.Request{Resolve: &agentproto.Resolve{}}))
	require.NoError(t, p.ask(&agentproto.Request{Fetch: &agentproto.Fetch{Bytes: 1 << 20, Slices: []agentproto.Slice{
		{Name: "w0", Offset: []int64{0}, Shape: []int64{1 << 20}, Bytes: 1 << 20}}}}))
	require.Equal(t, int64(4<<20), n.used())
	for step := uint64(2); step <= 3; step++ {
		require.NoError(t, p.begin(step, 1<<20))
		require.NoError(t, p.seal(step, 1<<20))
		require.NoError(t, n.wait(step))
	}
	require.Eventually(t, func() bool {
		maps, err := os.ReadFile("/proc/self/maps")
		require.NoError(t, err)
		for line := range strings.Lines(string(maps)) {
			if strings.Contains(line, n.dir) && strings.Contains(line, "(deleted)") {
				return false
			}
		}
		return n.used() <= 4<<20
	}, 10*time.Second, 10*time.Millisecond)
	require.NoError(t, p.ask(&agentproto.Request{Tensors: &agentproto.Tensors{}}), "the step is open still")
}

// TestALengthPastEveryBoundIsRefused: no length makes the memory that is in use wrong.
func TestALengthPastEveryBoundIsRefused(t *testing.T) {
	n := newNode(t, 8<<20)
	n.start(0)
	p := n.peer(runPath, "one", 1)
	for _, bytes := range []int64{math.MaxInt64, math.MaxInt64 - 2<<20, 8<<20 + 1} {
		err := p.begin(1, bytes)
		require.ErrorIs(t, err, moraine.NoSpace)
		require.ErrorContains(t, err, "--arena-memory")
	}
	require.Zero(t, n.used())
	require.NoError(t, p.ask(&agentproto.Request{Push: &agentproto.Push{DeadlineMillis: agentproto.MaxWaitMillis}}))
}

// TestNumbersPastTheirBounds: each time and each count of a request has a bound. What is past it, negative, or no
// number of its kind, is an error of the request, and the connection goes on.
func TestNumbersPastTheirBounds(t *testing.T) {
	n := newNode(t, 8<<20)
	n.start(0)
	p := n.peer(runPath, "one", 1)
	require.Equal(t, wire.MaxSealTimeoutMillis, agentproto.MaxSealTimeoutMillis)
	for _, req := range []string{
		`{"begin":{"step":1,"bytes":1000,"seal_timeout_ms":-1}}`,
		`{"begin":{"step":1,"bytes":1000,"seal_timeout_ms":604800001}}`,
		`{"begin":{"step":1,"bytes":1000,"seal_timeout_ms":9223372036854775807}}`,
		`{"begin":{"step":1,"bytes":1000,"seal_timeout_ms":9223372036854775808}}`,
		`{"begin":{"step":1,"bytes":1000,"seal_timeout_ms":1e300}}`,
		`{"begin":{"step":1,"bytes":1000,"reserve":-1}}`,
		`{"begin":{"step":1,"bytes":1000,"reserve":1125899906842625}}`,
		`{"begin":{"step":1,"bytes":-1}}`,
		`{"begin":{"step":1,"bytes":0}}`,
		`{"begin":{"step":-1,"bytes":1000}}`,
		`{"begin":{"step":18446744073709551616,"bytes":1000}}`,
		`{"open":{"run":"/runs/b","rank":4294967296,"world":1,"launch":"one"}}`,
		`{"open":{"run":"/runs/b","world":1,"launch":"one","bytes":-1}}`,
		`{"open":{"run":"/runs/b","world":1,"launch":"one","restart":-1}}`,
		`{"wait":{"run":"/runs/a","attempt":1,"step":1,"level":"nvme","timeout_ms":-1}}`,
		`{"wait":{"run":"/runs/a","attempt":1,"step":1,"level":"nvme","timeout_ms":9223372036854775807}}`,
		`{"push":{"deadline_ms":-1}}`,
		`{"push":{"deadline_ms":9223372036854775807}}`,
		`{"tensors":{"limit":-1}}`,
		`{"fetch":{"bytes":-1}}`,
		`{"list":{"path":"/","limit":-1}}`,
		`{"fetch_file":{"path":"/a","offset":-1,"bytes":10}}`,
		`{"fetch_file":{"path":"/a","offset":0,"bytes":-1}}`,
		`{"create":{"path":"/a","bytes":-1}}`,
		`{"append":{"bytes":-1}}`,
	} {
		var raw json.RawMessage = []byte(req)
		require.NoError(t, p.conn.Send(raw), req)
		var reply agentproto.Reply
		files, err := p.conn.Receive(&reply)
		require.NoError(t, err, "the connection goes on after %s", req)
		require.Empty(t, files)
		require.ErrorIs(t, reply.Err(), moraine.InvalidArgument, req)
	}
	require.Zero(t, n.used())
	require.NoError(t, p.ask(&agentproto.Request{Begin: &agentproto.Begin{Step: 1, Bytes: 1000, SealTimeoutMillis: agentproto.MaxSealTimeoutMillis}}))
	require.NoError(t, p.ask(&agentproto.Request{Abort: &agentproto.Abort{Step: 1}}))
}

// TestAnAgentRefusesWhatIsNotItsOwn: an agent uses no directory that others can write to, replaces
// no socket that is served, and no file that is not a socket.
func TestAnAgentRefusesWhatIsNotItsOwn(t *testing.T) {
	n := newNode(t, 8<<20)
	n.start(0)
	create := func(socket, dir string) error {
		_, err := agent.New(agent.Config{Socket: socket, Dir: dir, Memory: 8 << 20}, agent.Deps{})
		return err
	}
	require.ErrorIs(t, create(n.socket(), filepath.Join(n.dir, "other")), moraine.Busy)
	require.Empty(t, n.states(), "the agent serves on")
	file := filepath.Join(n.dir, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	require.ErrorIs(t, create(file, filepath.Join(n.dir, "other")), moraine.Exists)
	open := filepath.Join(n.dir, "open")
	require.NoError(t, os.Mkdir(open, 0o700))
	require.NoError(t, os.Chmod(open, 0o777))
	require.ErrorIs(t, create(n.socket()+"2", open), moraine.PermissionDenied)
	require.NoError(t, os.Symlink(open, filepath.Join(n.dir, "link")))
	require.ErrorIs(t, create(n.socket()+"2", filepath.Join(n.dir, "link")), moraine.PermissionDenied)
	if os.Geteuid() == 0 {
		require.NoError(t, os.Chmod(open, 0o700))
		require.NoError(t, os.Chown(open, 65534, 65534))
		require.ErrorIs(t, create(n.socket()+"2", open), moraine.PermissionDenied)
	}
}

// TestLeftoversOfACrash: whatever an agent leaves when it is killed between two files, the next one
// removes. It removes no part that a newer agent sealed.
func TestLeftoversOfACrash(t *testing.T) {
	n := newNode(t, 8<<20)
	arena := filepath.Join(n.dir, "arena")
	require.NoError(t, os.Mkdir(arena, 0o700))
	write := func(name, content string) {
		require.NoError(t, os.WriteFile(filepath.Join(arena, name), []byte(content), 0o600))
	}
	write("slot-0000000000000001", "not sealed")
	write("slot-0000000000000002.json.new", `{"version":1`)
	write("slot-0000000000000003.json", agent.ManifestOf(`{"version":1,"seal":{}}`)) // its slot is gone
	write("slot-0000000000000004.json", `{"version":1,`)
	write("slot-0000000000000004", "damaged")
	write("slot-0000000000000005.json", agent.ManifestOf(`{"version":1,"seal":{"step":1,"sums_at":1,"tensors":[{"name":"w","dtype":"U8","shape":[9],"at":0,"bytes":9}]}}`))
	write("slot-0000000000000005", "cut")
	write("slot-0000000000000006.json", agent.ManifestOf(`{"version":1,"seal":{}}`))
	write("slot-0000000000000006", "")
	write("slot-0000000000000008.json", strings.Replace(agent.ManifestOf(`{"version":1,"seal":{}}`), `"version":1`, `"version":3`, 1)) // a bit of it
	write("slot-0000000000000008", "whole")
	n.start(0)
	require.Empty(t, n.states())
	left, err := filepath.Glob(filepath.Join(arena, "slot-*"))
	require.NoError(t, err)
	require.Empty(t, left)
	require.NoError(t, n.stop())

	write("slot-0000000000000007.json", agent.ManifestOf(`{"version":2}`))
	write("slot-0000000000000007", "of a newer agent")
	n.start(0)
	require.ErrorIs(t, n.stop(), moraine.NewerFormat)
	require.FileExists(t, filepath.Join(arena, "slot-0000000000000007"))
	require.FileExists(t, filepath.Join(arena, "slot-0000000000000007.json"))
}
