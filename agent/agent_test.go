package agent_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/agent"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/client/ckpt/agentproto"
	"github.com/morainefs/moraine/client/ckpt/busy"
	"github.com/morainefs/moraine/client/ckpt/safetensors"
	"github.com/morainefs/moraine/integration/incluster"
	"github.com/morainefs/moraine/transport"
)

const (
	runPath = "/runs/a"
	// partBytes is the size of one rank's part: some stripes of the clients of incluster.
	partBytes = 300_000
	// slotBytes is what a slot for such a part takes.
	slotBytes = 6 << 20
)

// node is a training node: a cluster, a directory in memory, and the agent that runs there.
type node struct {
	t       *testing.T
	c       *incluster.Cluster
	dir     string
	arena   string // the directory of the arenas
	memory  int64
	config  agent.Config // what else the agent is configured with
	metrics *agent.Metrics
	log     *slog.Logger
	mu      sync.Mutex // guards clients
	clients int
	// wrap, if not nil, is around the network of the clients that come from now on.
	wrap func(transport.Dialer) transport.Dialer
	stop func() error // of the agent
	a    *agent.Agent
}

func newNode(t *testing.T, memory int64) *node {
	t.Helper()
	return newNodeOver(t, memory, incluster.Options{})
}

// newNodeOver is newNode over a cluster with options.
func newNodeOver(t *testing.T, memory int64, opts incluster.Options) *node {
	t.Helper()
	t.Parallel() // it mostly waits, for elections
	c, err := incluster.Start(context.Background(), opts)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Stop()) })
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.NoError(t, c.WaitReady(ctx))
	dir, err := os.MkdirTemp("/dev/shm", "moraine-agent-test-")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	n := &node{t: t, c: c, dir: dir, arena: filepath.Join(dir, "arena"), memory: memory}
	t.Cleanup(func() {
		if n.stop != nil {
			_ = n.stop() // a test that cares has stopped it
		}
	})
	return n
}

func (n *node) socket() string { return filepath.Join(n.dir, "sock") }

// start runs an agent. With no grace its end is like a crash, but for the memory of the process.
func (n *node) start(grace time.Duration) {
	n.t.Helper()
	var clients []*incluster.Client
	cfg := n.config
	cfg.Socket, cfg.Dir, cfg.Memory, cfg.Grace = n.socket(), n.arena, n.memory, grace
	a, err := agent.New(cfg,
		agent.Deps{Log: n.log, Metrics: n.metrics, Connect: func(ctx context.Context) (*client.Client, func() error, error) {
			c, err := n.client(ctx)
			if err != nil {
				return nil, nil, err
			}
			n.mu.Lock()
			defer n.mu.Unlock()
			clients = append(clients, c)
			return c.Client, c.Close, nil
		}})
	require.NoError(n.t, err)
	n.a = a
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	n.stop = func() error {
		cancel()
		n.stop = nil
		err := <-ended
		for _, c := range clients { // their processes have ended
			c.Kill()
		}
		return err
	}
}

func (n *node) client(ctx context.Context) (*incluster.Client, error) {
	n.mu.Lock()
	n.clients++
	defer n.mu.Unlock()
	return n.c.ClientOver(ctx, fmt.Sprintf("c%d", n.clients), client.Config{}, n.wrap)
}

// trainer is one rank that saves through the agent.
type trainer struct {
	n   *node
	c   *incluster.Client
	run *ckpt.Run
}

func (n *node) trainer(launch string, rank, world uint32) *trainer {
	n.t.Helper()
	c, err := n.client(n.t.Context())
	require.NoError(n.t, err)
	run, err := ckpt.OpenRun(n.t.Context(), c.Client, runPath, ckpt.RunOptions{Launch: ckpt.Launch{Name: launch}, Rank: rank, World: world, Agent: n.socket()})
	require.NoError(n.t, err)
	tr := &trainer{n, c, run}
	n.t.Cleanup(tr.die)
	return tr
}

// die ends the connection to the agent and the session, as the end of the process does.
func (tr *trainer) die() {
	if tr.c != nil {
		_ = tr.run.Close(context.Background())
		tr.c.Kill()
		tr.c = nil
	}
}

// data returns the tensor that a rank saves at a step.
func data(step uint64, rank uint32) []byte {
	rng := rand.New(rand.NewPCG(step, uint64(rank)))
	p := make([]byte, partBytes)
	for i := 0; i+8 <= len(p); i += 8 {
		binary.LittleEndian.PutUint64(p[i:], rng.Uint64())
	}
	return p
}

// fill begins a part and copies its tensor and a blob.
func (tr *trainer) fill(step uint64, rank uint32, opts ckpt.BeginOptions) (*ckpt.Part, error) {
	opts.Bytes = partBytes + 100
	part, err := tr.run.Begin(tr.n.t.Context(), step, opts)
	if err != nil {
		return nil, err
	}
	if err := part.AddTensor(tr.n.t.Context(), ckpt.Tensor{Name: fmt.Sprintf("w%d", rank), DType: safetensors.U8, Shape: []int64{partBytes}, Data: data(step, rank)}); err != nil {
		return nil, err
	}
	return part, part.AddBlob(tr.n.t.Context(), "rng", fmt.Appendf(nil, "state of rank %d", rank))
}

// save fills and seals a part.
func (tr *trainer) save(step uint64, rank uint32) *ckpt.Part {
	tr.n.t.Helper()
	part, err := tr.fill(step, rank, ckpt.BeginOptions{})
	require.NoError(tr.n.t, err)
	require.NoError(tr.n.t, part.Seal(tr.n.t.Context()))
	return part
}

// requireStep waits until a step is committed, and compares what every rank saved.
func (n *node) requireStep(step uint64, world uint32) {
	n.t.Helper()
	c, err := n.client(n.t.Context())
	require.NoError(n.t, err)
	defer c.Close()
	run, err := ckpt.OpenRun(n.t.Context(), c.Client, runPath, ckpt.RunOptions{ReadOnly: true})
	require.NoError(n.t, err)
	defer run.Close(n.t.Context())
	require.Eventually(n.t, func() bool {
		k, err := run.Resolve(n.t.Context(), ckpt.ResolveOptions{Step: step, Exact: true})
		if errors.Is(err, moraine.NotFound) {
			return false
		}
		require.NoError(n.t, err)
		defer k.Close()
		for rank := range world {
			got, err := k.ReadTensor(n.t.Context(), fmt.Sprintf("w%d", rank))
			require.NoError(n.t, err)
			require.Equal(n.t, data(step, rank), got, "step %d rank %d", step, rank)
			blob, err := k.ReadBlob(n.t.Context(), rank, "rng")
			require.NoError(n.t, err)
			require.Equal(n.t, fmt.Sprintf("state of rank %d", rank), string(blob))
		}
		return true
	}, time.Minute, 20*time.Millisecond)
}

// eventually waits until a condition holds.
func (n *node) eventually(holds func() bool) {
	n.t.Helper()
	require.Eventually(n.t, holds, time.Minute, 20*time.Millisecond)
}

// never fails if a condition holds within the next moments.
func (n *node) never(holds func() bool, msg ...any) {
	n.t.Helper()
	for range 6 {
		require.False(n.t, holds(), msg...)
		time.Sleep(50 * time.Millisecond)
	}
}

// states returns the state of each part of the node, by step.
func (n *node) states() map[uint64]string {
	n.t.Helper()
	reply, err := agentproto.Ask(n.t.Context(), n.socket(), &agentproto.Request{Status: &agentproto.Status{}})
	require.NoError(n.t, err)
	out := map[uint64]string{}
	for _, p := range reply.Status.Parts {
		out[p.Step] = p.State
	}
	return out
}

// TestASealedPartSurvivesItsTrainer: a trainer that dies right after Wait(Local) leaves a step
// that is committed all the same, and a new launch may follow at once.
func TestASealedPartSurvivesItsTrainer(t *testing.T) {
	n := newNode(t, 3*slotBytes)
	n.start(time.Minute)
	tr := n.trainer("one", 0, 1)
	part := tr.save(7, 0)
	info, err := part.Wait(t.Context(), moraine.Local)
	require.NoError(t, err)
	require.Equal(t, uint64(7), info.Step)
	tr.die()
	next := n.trainer("two", 0, 1) // not Busy: the dead trainer leaves no session
	k, err := next.run.Resolve(t.Context(), ckpt.ResolveOptions{Fix: true})
	require.NoError(t, err, "the next launch continues from the step")
	require.Equal(t, uint64(7), k.Info.Step)
	require.NoError(t, k.Close())
	n.requireStep(7, 1)
	next.save(8, 0)
	n.requireStep(8, 1)
	require.NoError(t, n.stop())
}

// TestTheNextAgentGoesOn: parts that were sealed in an agent's memory are in a committed step
// after the next agent has started, though their trainer is gone, too.
func TestTheNextAgentGoesOn(t *testing.T) {
	n := newNode(t, 6*slotBytes)
	n.start(0)
	first := n.trainer("one", 0, 2)
	first.save(1, 0)
	n.trainer("one", 1, 2).save(1, 1)
	n.requireStep(1, 2)
	first.save(2, 0) // rank 1 has not sealed: the step is not committed
	first.die()
	err := n.stop()
	require.ErrorIs(t, err, moraine.Incomplete)
	require.ErrorContains(t, err, "step 2, rank 0")
	n.start(time.Minute)
	require.Equal(t, map[uint64]string{1: agentproto.Committed, 2: agentproto.Local}, n.states())
	n.trainer("one", 1, 2).save(2, 1)
	n.requireStep(2, 2)
	require.NoError(t, n.stop())
}

// TestATrainerFindsTheNextAgent: a trainer whose agent was restarted between saves saves on, and
// learns how its earlier part ended.
func TestATrainerFindsTheNextAgent(t *testing.T) {
	n := newNode(t, 6*slotBytes)
	n.start(0)
	tr := n.trainer("one", 0, 1)
	part := tr.save(1, 0)
	_ = n.stop() // the part may be committed by then, or not
	n.start(time.Minute)
	_, err := part.Wait(t.Context(), moraine.NVMe)
	require.NoError(t, err)
	tr.save(2, 0)
	n.requireStep(1, 1)
	n.requireStep(2, 1)
}

// TestAWaitGoesOnWithTheNextAgent: the end of an agent does not end the Wait of a trainer: it gets no
// answer, and the next agent answers it.
func TestAWaitGoesOnWithTheNextAgent(t *testing.T) {
	n := newNode(t, 6*slotBytes)
	n.wrap = holdSeals
	n.start(0)
	part := n.trainer("one", 0, 1).save(1, 0)
	waited := make(chan error, 1)
	go func() {
		_, err := part.Wait(context.Background(), moraine.NVMe)
		waited <- err
	}()
	// An agent that answered would have little time for it: it closes the connections one by one.
	const waiters = 900
	unanswered := make(chan error, waiters)
	for range waiters {
		p := n.stranger()
		go func() {
			unanswered <- p.ask(&agentproto.Request{Wait: &agentproto.Wait{Run: runPath, Attempt: 1, Step: 1, Level: "nvme"}})
		}()
	}
	time.Sleep(500 * time.Millisecond) // until they wait; one that does not yet finds no agent
	require.ErrorIs(t, n.stop(), moraine.Incomplete)
	for range waiters {
		err := <-unanswered
		require.True(t, agentproto.Broken(err), "the agent that ended answered: %v", err)
	}
	n.wrap = nil
	n.start(time.Minute)
	require.NoError(t, <-waited)
}

// TestAnUnsealedPartEndsWithItsTrainer: the other ranks learn at once that a trainer died while it
// copied, and its memory is given back.
func TestAnUnsealedPartEndsWithItsTrainer(t *testing.T) {
	n := newNode(t, 6*slotBytes)
	n.start(0)
	other := n.trainer("one", 1, 2).save(3, 1)
	tr := n.trainer("one", 0, 2)
	_, err := tr.fill(3, 0, ckpt.BeginOptions{})
	require.NoError(t, err)
	tr.die()
	_, err = other.Wait(t.Context(), moraine.NVMe)
	require.ErrorIs(t, err, moraine.Aborted)
	require.ErrorContains(t, err, "rank 0")
	require.Eventually(t, func() bool {
		left, err := filepath.Glob(filepath.Join(n.arena, "slot-*"))
		require.NoError(t, err)
		return len(left) <= 1 // the other rank's, free again
	}, time.Minute, 20*time.Millisecond)
}

// TestTheMemoryOfTheNodeIsBounded: the arenas never take more than their limit, a save that does
// not fit says so at once, and the last good part of a rank stays.
func TestTheMemoryOfTheNodeIsBounded(t *testing.T) {
	n := newNode(t, 2*slotBytes)
	n.start(0)
	tr := n.trainer("one", 0, 2)
	_, err := tr.run.Begin(t.Context(), 1, ckpt.BeginOptions{Bytes: 1 << 30})
	require.ErrorIs(t, err, moraine.NoSpace)
	require.ErrorContains(t, err, "--arena-memory")
	_, err = tr.run.Begin(t.Context(), 1, ckpt.BeginOptions{})
	require.ErrorIs(t, err, moraine.InvalidArgument)
	tr.save(1, 0) // both slots are taken while rank 1 has not sealed
	tr.save(2, 0)
	_, err = tr.fill(3, 0, ckpt.BeginOptions{Busy: busy.Skip})
	require.ErrorIs(t, err, moraine.Busy)
	rank1, err := n.client(t.Context())
	require.NoError(t, err)
	run1, err := ckpt.OpenRun(t.Context(), rank1.Client, runPath, ckpt.RunOptions{Launch: ckpt.Launch{Name: "one"}, Rank: 1, World: 2})
	require.NoError(t, err)
	for step := uint64(1); step <= 3; step++ {
		part, err := run1.Begin(t.Context(), step, ckpt.BeginOptions{})
		require.NoError(t, err)
		require.NoError(t, part.AddTensor(t.Context(), ckpt.Tensor{Name: "w1", DType: safetensors.U8, Shape: []int64{partBytes}, Data: data(step, 1)}))
		require.NoError(t, part.AddBlob(t.Context(), "rng", []byte("state of rank 1")))
		require.NoError(t, part.Seal(t.Context()))
	}
	tr.save(3, 0) // it waits until step 2 is committed, whose part makes that of step 1 needless
	for step := uint64(1); step <= 3; step++ {
		n.requireStep(step, 2)
	}
	require.NoError(t, run1.Close(t.Context()))
	require.NoError(t, rank1.Close())
	require.Eventually(t, func() bool {
		got := n.states()
		return len(got) == 1 && got[3] == agentproto.Committed
	}, time.Minute, 20*time.Millisecond, "only the last good part is kept")
}

// TestTheNextLaunchKeepsTheLastGoodPart: a later launch of a rank does not take the slot of the last good
// part, which an earlier launch saved, before it has a good one of its own.
func TestTheNextLaunchKeepsTheLastGoodPart(t *testing.T) {
	n := newNode(t, 2*slotBytes)
	n.start(0)
	// elsewhere is rank 1, on a node without an agent.
	elsewhere := func(launch string) *trainer {
		c, err := n.client(t.Context())
		require.NoError(t, err)
		run, err := ckpt.OpenRun(t.Context(), c.Client, runPath, ckpt.RunOptions{Launch: ckpt.Launch{Name: launch}, Rank: 1, World: 2})
		require.NoError(t, err)
		return &trainer{n, c, run}
	}
	first, other := n.trainer("one", 0, 2), elsewhere("one")
	first.save(1, 0)
	other.save(1, 1)
	n.requireStep(1, 2)
	n.eventually(func() bool { return n.states()[1] == agentproto.Committed })
	first.die()
	require.NoError(t, errors.Join(other.run.Close(t.Context()), other.c.Close()))

	second, other := n.trainer("two", 0, 2), elsewhere("two")
	defer other.die()
	second.save(2, 0) // rank 1 has not saved it: it has the other slot
	_, err := second.fill(3, 0, ckpt.BeginOptions{Busy: busy.Skip})
	require.ErrorIs(t, err, moraine.Busy)
	require.Equal(t, agentproto.Committed, n.states()[1], "the last good part is in memory")
	other.save(2, 1)
	second.save(3, 0) // it waits until step 2 is committed
	other.save(3, 1)
	n.requireStep(3, 2)
}

// TestOneAgentForANode: a second agent of the same arenas is refused.
func TestOneAgentForANode(t *testing.T) {
	n := newNode(t, slotBytes)
	n.start(0)
	_, err := agent.New(agent.Config{Socket: n.socket() + "2", Dir: filepath.Join(n.dir, "arena"), Memory: slotBytes}, agent.Deps{})
	require.ErrorIs(t, err, moraine.Busy)
}

// TestBadRequestsAreRefused: what no trainer sends gets an error or ends its connection, and the
// agent serves on.
func TestBadRequestsAreRefused(t *testing.T) {
	n := newNode(t, 3*slotBytes)
	n.start(0)
	for name, frame := range map[string][]byte{
		"length past the bound": binary.LittleEndian.AppendUint32(nil, agentproto.MaxFrame+1),
		"no JSON":               append(binary.LittleEndian.AppendUint32(nil, 3), "abc"...),
		"half a frame":          append(binary.LittleEndian.AppendUint32(nil, 30), "{"...),
		"half a length":         {1, 0},
	} {
		c, err := net.Dial("unix", n.socket())
		require.NoError(t, err)
		_, err = c.Write(frame)
		require.NoError(t, err)
		require.NoError(t, c.(*net.UnixConn).CloseWrite())
		b := make([]byte, 1)
		_, err = c.Read(b)
		require.Error(t, err, name)
		require.NoError(t, c.Close())
	}
	long, err := net.Dial("unix", n.socket()) // before hello, frames are short
	require.NoError(t, err)
	_, err = long.Write(binary.LittleEndian.AppendUint32(nil, 1<<20))
	require.NoError(t, err)
	_, err = long.Read(make([]byte, 1))
	require.Error(t, err)
	require.NoError(t, long.Close())
	conn, err := agentproto.Dial(t.Context(), n.socket())
	require.NoError(t, err)
	defer conn.Close()
	ask := func(req *agentproto.Request) error {
		_, _, err := conn.Exchange(t.Context(), req)
		return err
	}
	require.ErrorIs(t, ask(&agentproto.Request{}), moraine.Unimplemented)
	require.ErrorIs(t, ask(&agentproto.Request{Hello: &agentproto.Hello{Version: 99}}), moraine.NewerFormat)
	require.ErrorIs(t, ask(&agentproto.Request{Begin: &agentproto.Begin{Step: 1, Bytes: 1}}), moraine.InvalidArgument)
	require.NoError(t, ask(&agentproto.Request{Open: &agentproto.Open{Run: runPath, World: 1, Launch: "one"}}))
	require.NoError(t, ask(&agentproto.Request{Begin: &agentproto.Begin{Step: 1, Bytes: 1 << 20}}))
	require.ErrorIs(t, ask(&agentproto.Request{Begin: &agentproto.Begin{Step: 2, Bytes: 1 << 20}}), moraine.InvalidArgument)
	require.ErrorIs(t, ask(&agentproto.Request{Seal: &agentproto.Seal{Step: 2}}), moraine.InvalidArgument)
	for _, place := range []agentproto.Tensor{{At: -1, Bytes: 4}, {At: 0, Bytes: 1 << 40}, {At: 1 << 62, Bytes: 1 << 62}, {At: 0, Bytes: -1}} {
		place.Name, place.DType, place.Shape = "w", "U8", []int64{4}
		require.ErrorIs(t, ask(&agentproto.Request{Seal: &agentproto.Seal{Step: 1, Tensors: []agentproto.Tensor{place}}}), moraine.InvalidArgument)
	}
	require.ErrorIs(t, ask(&agentproto.Request{Wait: &agentproto.Wait{Run: runPath, Attempt: 1, Step: 1, Level: "moon"}}), moraine.Unimplemented)
	require.ErrorIs(t, ask(&agentproto.Request{Wait: &agentproto.Wait{Run: runPath, Attempt: 1, Step: 9, Level: "nvme"}}), moraine.NotFound)
	require.NoError(t, ask(&agentproto.Request{Abort: &agentproto.Abort{Step: 1, Reason: "test"}}))
	require.Equal(t, map[uint64]string{1: agentproto.Failed}, n.states())
}

// TestASumThatDoesNotFitEndsThePart: bytes that changed between the trainer's copy and the write
// to the cluster are found, and no step has them.
func TestASumThatDoesNotFitEndsThePart(t *testing.T) {
	n := newNode(t, 3*slotBytes)
	n.start(0)
	conn, err := agentproto.Dial(t.Context(), n.socket())
	require.NoError(t, err)
	defer conn.Close()
	exchange := func(req *agentproto.Request) {
		_, files, err := conn.Exchange(t.Context(), req)
		require.NoError(t, err)
		for _, f := range files {
			_, err := f.WriteAt(data(1, 0), 0)
			require.NoError(t, err)
			require.NoError(t, f.Close()) // the sums behind it are 0
		}
	}
	exchange(&agentproto.Request{Open: &agentproto.Open{Run: runPath, World: 1, Launch: "one"}})
	exchange(&agentproto.Request{Begin: &agentproto.Begin{Step: 1, Bytes: 1 << 20}})
	exchange(&agentproto.Request{Seal: &agentproto.Seal{Step: 1, SumsAt: partBytes, Tensors: []agentproto.Tensor{
		{Name: "w0", DType: "U8", Shape: []int64{partBytes}, Bytes: partBytes}}}})
	_, err = agentproto.Ask(t.Context(), n.socket(), &agentproto.Request{Wait: &agentproto.Wait{Run: runPath, Attempt: 1, Step: 1, Level: "nvme"}})
	require.ErrorIs(t, err, moraine.Corrupt)
}

// TestAnotherUserIsRefused: a process of a user who may not use the agent gets an error that says
// what to do, and cannot keep the agent's connections.
func TestAnotherUserIsRefused(t *testing.T) {
	if os.Getenv("MORAINE_TEST_AGENT_SOCKET") != "" {
		_, err := agentproto.Dial(t.Context(), os.Getenv("MORAINE_TEST_AGENT_SOCKET"))
		require.ErrorIs(t, err, moraine.PermissionDenied)
		require.ErrorContains(t, err, "--allow-user 65534")
		for range 40 {
			c, err := net.Dial("unix", os.Getenv("MORAINE_TEST_AGENT_SOCKET"))
			require.NoError(t, err)
			defer c.Close()
		}
		return
	}
	requireRoot(t)
	n := newNode(t, 3*slotBytes)
	n.start(0)
	n.asAnotherUser()
	require.Empty(t, n.states())
}

// TestASlotThatWasCutIsRefused: a trainer that changes the length of its slot cannot seal it.
func TestASlotThatWasCutIsRefused(t *testing.T) {
	n := newNode(t, 3*slotBytes)
	n.start(0)
	conn, err := agentproto.Dial(t.Context(), n.socket())
	require.NoError(t, err)
	defer conn.Close()
	_, _, err = conn.Exchange(t.Context(), &agentproto.Request{Open: &agentproto.Open{Run: runPath, World: 1, Launch: "one"}})
	require.NoError(t, err)
	_, files, err := conn.Exchange(t.Context(), &agentproto.Request{Begin: &agentproto.Begin{Step: 1, Bytes: 1 << 20}})
	require.NoError(t, err)
	require.NoError(t, files[0].Truncate(0))
	require.NoError(t, files[0].Close())
	_, _, err = conn.Exchange(t.Context(), &agentproto.Request{Seal: &agentproto.Seal{Step: 1, Tensors: []agentproto.Tensor{
		{Name: "w0", DType: "U8", Shape: []int64{4}, Bytes: 4}}}})
	require.ErrorIs(t, err, moraine.Corrupt)
}

// TestARestartRestoresFromTheMemoryOfTheNode: a new launch on the node reads what its ranks saved
// from their slots, in any cut. A byte that changed there comes from the cluster, and the slot that
// a reader has mapped is not written to by later saves.
func TestARestartRestoresFromTheMemoryOfTheNode(t *testing.T) {
	n := newNode(t, 6*slotBytes)
	n.start(0)
	first := n.trainer("one", 0, 1)
	first.save(1, 0)
	n.requireStep(1, 1)
	n.eventually(func() bool { return n.states()[1] == agentproto.Committed })
	first.die()

	second := n.trainer("two", 0, 1)
	k, err := second.run.Resolve(t.Context(), ckpt.ResolveOptions{Fix: true})
	require.NoError(t, err)
	want := data(1, 0)
	got, err := k.ReadTensor(t.Context(), "w0")
	require.NoError(t, err)
	require.Equal(t, want, got)
	blob, err := k.ReadBlob(t.Context(), 0, "rng")
	require.NoError(t, err)
	require.Equal(t, "state of rank 0", string(blob))
	for _, cut := range [][2]int64{{0, 1}, {1, 5000}, {4096, 8192}, {partBytes - 1, partBytes}, {100, 270_000}} {
		dst := make([]byte, cut[1]-cut[0])
		require.NoError(t, k.ReadSlice(t.Context(), ckpt.SliceRequest{Name: "w0", Offset: []int64{cut[0]}, Shape: []int64{cut[1] - cut[0]}, Dst: dst}))
		require.Equal(t, want[cut[0]:cut[1]], dst)
	}
	require.Zero(t, k.BytesRead(), "nothing came from the cluster")
	require.Greater(t, k.NodeBytes(), int64(2*partBytes-50_000))

	second.save(2, 0)
	second.save(3, 0)
	n.requireStep(3, 1)
	got, err = k.ReadTensor(t.Context(), "w0")
	require.NoError(t, err)
	require.Equal(t, want, got)
	require.Zero(t, k.BytesRead())
	require.NoError(t, k.Close())

	n.eventually(func() bool { return n.states()[3] == agentproto.Committed })
	for _, path := range n.slots() {
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		require.NoError(t, err)
		var b [1]byte
		_, err = f.ReadAt(b[:], 200_000)
		require.NoError(t, err)
		_, err = f.WriteAt([]byte{b[0] ^ 1}, 200_000) // in the tensor, which comes first
		require.NoError(t, err)
		require.NoError(t, f.Close())
	}
	k, err = second.run.Resolve(t.Context(), ckpt.ResolveOptions{})
	require.NoError(t, err)
	defer k.Close()
	got, err = k.ReadTensor(t.Context(), "w0")
	require.NoError(t, err)
	require.Equal(t, data(3, 0), got)
	require.Equal(t, int64(partBytes), k.BytesRead())
	bad := k.BadRanges()
	require.Len(t, bad, 1, "the restore names what the memory of the node no longer has")
	require.Equal(t, moraine.Local, bad[0].Level)
	require.ErrorIs(t, bad[0].Err, moraine.Corrupt)
}

// TestASlotThatWasReadIsUsedAgain: once a restore is closed, later saves have the memory of its part.
// Otherwise the trainers would keep it mapped, and the node would have memory beyond its limit.
func TestASlotThatWasReadIsUsedAgain(t *testing.T) {
	n := newNode(t, 6*slotBytes)
	n.start(0)
	tr := n.trainer("one", 0, 1)
	known := map[string]bool{}
	for step := uint64(1); step <= 6; step++ {
		tr.save(step, 0)
		n.requireStep(step, 1)
		n.eventually(func() bool { return n.states()[step] == agentproto.Committed })
		k, err := tr.run.Resolve(t.Context(), ckpt.ResolveOptions{Step: step, Exact: true})
		require.NoError(t, err)
		got, err := k.ReadTensor(t.Context(), "w0")
		require.NoError(t, err)
		require.Equal(t, data(step, 0), got)
		require.Zero(t, k.BytesRead())
		require.NoError(t, k.Close())
		for _, path := range n.slots() {
			known[path] = true
		}
	}
	require.LessOrEqual(t, len(known), 3, "the last good one, the one that is written, and one made in advance")
}

// slots returns the files of the slots.
func (n *node) slots() []string {
	n.t.Helper()
	files, err := filepath.Glob(filepath.Join(n.arena, "slot-????????????????"))
	require.NoError(n.t, err)
	return files
}

// TestASaveThatDoesNotFitIsRefused: with a quota on the run, Begin fails before a byte is copied, and
// the memory of the node is free again.
func TestASaveThatDoesNotFitIsRefused(t *testing.T) {
	n := newNode(t, 64<<20)
	n.start(0)
	tr := n.trainer("one", 0, 1)
	admin, err := n.c.Admin(t.Context(), "admin")
	require.NoError(t, err)
	defer admin.Kill()
	require.NoError(t, admin.Quotas().Set(t.Context(), tr.run.ID(), 1<<20, 0))
	_, err = tr.run.Begin(t.Context(), 1, ckpt.BeginOptions{Bytes: 2 << 20})
	require.ErrorIs(t, err, moraine.QuotaExceeded)
	_, err = tr.run.Begin(t.Context(), 2, ckpt.BeginOptions{Bytes: 1 << 19})
	require.NoError(t, err)
}

// TestAWaitForALevel: the agent answers a wait for memory, nvme and object when the step is there, and
// with the level that it has then, also after newer steps. It keeps nothing of a part that a newer one replaced but how it ended.
func TestAWaitForALevel(t *testing.T) {
	var hold incluster.Hold
	n := newNodeOver(t, 64<<20, incluster.Options{Rule: hold.Rule})
	n.start(0)
	tr := n.trainer("one", 0, 1)
	wait := func(step uint64, level string, timeout time.Duration) (string, error) {
		reply, err := agentproto.Ask(t.Context(), n.socket(), &agentproto.Request{Wait: &agentproto.Wait{Run: runPath, Attempt: 1, Step: step, Level: level,
			TimeoutMillis: timeout.Milliseconds()}})
		if err != nil {
			return "", err
		}
		return reply.Wait.Level, nil
	}
	requireLevel := func(want string, step uint64, level string) {
		t.Helper()
		got, err := wait(step, level, 0)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	for step := uint64(1); step <= 3; step++ {
		hold.Begin() // no device writes
		part, err := tr.fill(step, 0, ckpt.BeginOptions{Level: moraine.Memory})
		require.NoError(t, err)
		require.NoError(t, part.Seal(t.Context()))
		requireLevel("memory", step, "memory")
		_, err = wait(step, "nvme", 300*time.Millisecond)
		require.ErrorIs(t, err, moraine.Timeout)
		hold.End()
		requireLevel("nvme", step, "nvme")
		requireLevel("nvme", step, "memory")
	}
	requireLevel("nvme", 1, "memory")
	progress, err := agentproto.Ask(t.Context(), n.socket(), &agentproto.Request{Progress: &agentproto.Progress{Run: runPath, Attempt: 1, Step: 1}})
	require.NoError(t, err)
	require.Equal(t, progress.Progress.Bytes, progress.Progress.Written)
	require.NotZero(t, progress.Progress.Bytes)
	_, err = agentproto.Ask(t.Context(), n.socket(), &agentproto.Request{Wait: &agentproto.Wait{Run: runPath, Attempt: 1, Step: 1, Level: "object"}})
	require.ErrorIs(t, err, moraine.Unavailable)
	require.ErrorContains(t, err, "no chunkserver has a bucket")
}
