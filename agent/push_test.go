package agent_test

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/client/ckpt/agentproto"
)

// pushes asks the agent to push, and returns what is not safe.
func (n *node) pushes(run, level string, deadline time.Duration) ([]agentproto.Part, error) {
	reply, err := agentproto.Ask(n.t.Context(), n.socket(), &agentproto.Request{Push: &agentproto.Push{Run: run, Level: level, DeadlineMillis: deadline.Milliseconds()}})
	if err != nil {
		return nil, err
	}
	return reply.Push.Parts, nil
}

// TestAPushNamesPartsThatFail: rank 1 is killed between begin and seal while the node is pushed. The sealed part of
// rank 0 fails with it, and the push and the end of the agent say so. A newer step of the rank makes it needless.
func TestAPushNamesPartsThatFail(t *testing.T) {
	n := newNode(t, 6*slotBytes)
	n.start(time.Minute)
	zero, one := n.trainer("one", 0, 2), n.peerOf(runPath, "one", 1, 2)
	zero.save(1, 0)
	require.NoError(t, one.begin(1, partBytes))
	type answer struct {
		parts []agentproto.Part
		err   error
	}
	answers := make(chan answer, 1)
	go func() {
		parts, err := n.pushes("", "", time.Minute)
		answers <- answer{parts, err}
	}()
	n.never(func() bool { return len(answers) > 0 }, "the part waits for rank 1")
	require.NoError(t, one.conn.Close())
	got := <-answers
	require.NoError(t, got.err)
	require.Len(t, got.parts, 1)
	require.Equal(t, agentproto.Failed, got.parts[0].State)
	require.EqualValues(t, 1, got.parts[0].Step)
	require.Contains(t, got.parts[0].Error, "rank 1")
	left, err := n.pushes("", "", time.Minute)
	require.NoError(t, err)
	require.Empty(t, left, "it had failed before")

	one = n.peerOf(runPath, "one", 1, 2)
	zero.save(2, 0)
	require.NoError(t, one.begin(2, partBytes))
	ended := make(chan error, 1)
	stop := n.stop
	go func() { ended <- stop() }()
	n.never(func() bool { return len(ended) > 0 })
	require.NoError(t, one.conn.Close())
	err = <-ended
	require.ErrorIs(t, err, moraine.Incomplete)
	require.ErrorContains(t, err, "1 parts failed while the agent ended (first: "+runPath+" step 2, rank 0")
}

// TestAFailedPartThatANewerStepReplaces: a push that sees a part fail is content once the rank's next step is
// committed.
func TestAFailedPartThatANewerStepReplaces(t *testing.T) {
	n := newNode(t, 6*slotBytes)
	n.start(time.Minute)
	zero, one := n.trainer("one", 0, 2), n.trainer("one", 1, 2)
	zero.save(1, 0)
	dies, err := one.fill(1, 1, ckpt.BeginOptions{})
	require.NoError(t, err)
	answers := make(chan []agentproto.Part, 1)
	go func() {
		parts, err := n.pushes("", "", time.Minute)
		if err != nil {
			parts = []agentproto.Part{{Error: err.Error()}}
		}
		answers <- parts
	}()
	n.never(func() bool { return len(answers) > 0 })
	zero.save(2, 0) // sealed before step 1 fails, so the push waits for it too
	dies.Abort(nil)
	n.eventually(func() bool { return n.states()[1] == agentproto.Failed })
	n.never(func() bool { return len(answers) > 0 })
	one.save(2, 1)
	require.Empty(t, <-answers)
}

// TestARunHasOnePath: however a trainer, a command or a program in another language writes the path of a run, it is the
// same one. A push of a run that the agent does not know fails.
func TestARunHasOnePath(t *testing.T) {
	n := newNode(t, 6*slotBytes)
	n.start(0)
	ways := []string{"/runs/a", "runs/a", "/runs/a/", "//runs//a", "moraine:///runs/a"}
	one := n.peerOf("runs/a/", "one", 1, 2)
	zero := n.peerOf("moraine:///runs/a/", "one", 0, 2)
	require.NoError(t, zero.begin(1, partBytes))
	require.NoError(t, zero.seal(1, partBytes))
	for _, run := range ways {
		left, err := n.pushes(run, "", time.Second)
		require.NoError(t, err, run)
		require.Len(t, left, 1, run)
		require.Equal(t, "/runs/a", left[0].Run)
		for _, req := range []*agentproto.Request{
			{Wait: &agentproto.Wait{Run: run, Attempt: 1, Step: 1, Level: "local"}}, {Progress: &agentproto.Progress{Run: run, Attempt: 1, Step: 1}},
			{Read: &agentproto.Read{Run: run, Attempt: 1, Step: 1}},
		} {
			require.NoError(t, zero.ask(req), run)
		}
	}
	for _, run := range []string{"/runs/b", "/", "/runs/a/b"} {
		_, err := n.pushes(run, "", time.Second)
		require.ErrorIs(t, err, moraine.NotFound, run)
	}
	_, err := n.pushes("moraine://host1/runs/a", "", time.Second)
	require.ErrorIs(t, err, moraine.InvalidArgument)
	require.ErrorContains(t, err, "write moraine:///runs/a")
	reader := n.stranger()
	require.NoError(t, reader.ask(&agentproto.Request{Open: &agentproto.Open{Run: "runs/a", World: 1, ReadOnly: true}}))
	require.NoError(t, one.conn.Close())
	require.ErrorIs(t, n.stranger().ask(&agentproto.Request{Open: &agentproto.Open{Run: "moraine://host1/runs/a", World: 1, Launch: "one"}}), moraine.InvalidArgument)
}

// TestAPushToALevel: only nvme and object can be pushed to. Without a bucket the push to it names each rank's newest
// part and the reason, also if its slot was given back.
func TestAPushToALevel(t *testing.T) {
	n := newNode(t, 2*slotBytes)
	n.start(time.Minute)
	tr := n.trainer("one", 0, 1)
	tr.commit(10)
	_, err := n.pushes("", "memory", time.Second)
	require.ErrorIs(t, err, moraine.InvalidArgument)
	tr.die()
	// Another rank needs the memory: the slot of the rank that nobody has open goes.
	other := n.peer("/runs/b", "one", 1)
	require.NoError(t, other.begin(1, 2*slotBytes))
	require.Empty(t, n.states()[10], "the part has no slot any more")
	left, err := n.pushes(runPath, "object", 20*time.Second)
	require.NoError(t, err)
	require.Len(t, left, 1)
	require.EqualValues(t, 10, left[0].Step)
	require.Contains(t, left[0].Error, "no chunkserver has a bucket")
	left, err = n.pushes(runPath, "nvme", 20*time.Second)
	require.NoError(t, err)
	require.Empty(t, left)
}

// TestASealThatCannotBeCommittedIsRefused: the agent checks all that a part must have before it says local. The
// trainer can seal again, or abort.
func TestASealThatCannotBeCommittedIsRefused(t *testing.T) {
	n := newNode(t, 3*slotBytes)
	n.start(time.Minute)
	p := n.peer(runPath, "one", 1)
	require.NoError(t, p.begin(1, 1<<20))
	w := func(change func(*agentproto.Tensor)) []agentproto.Tensor {
		good := agentproto.Tensor{Name: "w", DType: "F32", Shape: []int64{2, 2}, Bytes: 16}
		change(&good)
		return []agentproto.Tensor{good}
	}
	same := func(*agentproto.Tensor) {}
	for name, seal := range map[string]agentproto.Seal{
		"no name":     {Tensors: w(func(t *agentproto.Tensor) { t.Name = "" })},
		"metadata":    {Tensors: w(func(t *agentproto.Tensor) { t.Name = "__metadata__" })},
		"type":        {Tensors: w(func(t *agentproto.Tensor) { t.DType = "F33" })},
		"size":        {Tensors: w(func(t *agentproto.Tensor) { t.Bytes = 15 })},
		"negative":    {Tensors: w(func(t *agentproto.Tensor) { t.Shape = []int64{-2, -2} })},
		"slice":       {Tensors: w(func(t *agentproto.Tensor) { t.Global, t.Offset = []int64{3, 2}, []int64{2, 0} })},
		"dimensions":  {Tensors: w(func(t *agentproto.Tensor) { t.Global, t.Offset = []int64{4}, []int64{0} })},
		"two types":   {Tensors: append(w(same), w(func(t *agentproto.Tensor) { t.DType = "I32" })...)},
		"two shapes":  {Tensors: append(w(same), w(func(t *agentproto.Tensor) { t.Shape = []int64{4} })...)},
		"blob's name": {Blobs: []agentproto.Blob{{Name: "a/b", Bytes: 1}}},
		"same blob":   {Blobs: []agentproto.Blob{{Name: "a", Bytes: 1}, {Name: "a", Bytes: 1}}},
		"many blobs":  {Blobs: manyBlobs()},
		"outside":     {Tensors: w(func(t *agentproto.Tensor) { t.At = 1 << 40 })},
	} {
		seal.Step = 1
		require.ErrorIs(t, p.ask(&agentproto.Request{Seal: &seal}), moraine.InvalidArgument, name)
		require.Error(t, p.ask(&agentproto.Request{Wait: &agentproto.Wait{Run: runPath, Attempt: 1, Step: 1, Level: "local"}}), name)
	}
	require.Equal(t, map[uint64]string{1: agentproto.Filling}, n.states())
	require.NoError(t, p.ask(&agentproto.Request{Seal: &agentproto.Seal{Step: 1, Tensors: w(same)}}))
	require.NoError(t, n.wait(1))
}

// TestARequestWithABadValueIsRefused: a number that is no count, or a frame that is no request, gets an error. What the
// connection has open stays.
func TestARequestWithABadValueIsRefused(t *testing.T) {
	n := newNode(t, 3*slotBytes)
	n.start(0)
	p := n.stranger()
	type object map[string]any
	for name, req := range map[string]any{
		"negative": object{"open": object{"run": runPath, "rank": -1, "world": 1, "launch": "one"}},
		"fraction": object{"open": object{"run": runPath, "world": 1.5, "launch": "one"}},
		"past all": object{"begin": object{"step": json.Number("18446744073709551616"), "bytes": 1}},
		"text":     object{"begin": object{"step": "1", "bytes": 1}},
		"no JSON":  json.RawMessage(`7`),
	} {
		require.NoError(t, p.conn.Send(req), name)
		var reply agentproto.Reply
		_, err := p.conn.Receive(&reply)
		require.NoError(t, err, name)
		require.ErrorIs(t, reply.Err(), moraine.InvalidArgument, name)
	}
	require.NoError(t, p.ask(&agentproto.Request{Open: &agentproto.Open{Run: runPath, World: 1, Launch: "one"}}))
	require.NoError(t, p.begin(1, partBytes))
	require.NoError(t, p.conn.Send(object{"begin": object{"step": -1}}))
	var reply agentproto.Reply
	_, err := p.conn.Receive(&reply)
	require.NoError(t, err)
	require.ErrorIs(t, reply.Err(), moraine.InvalidArgument)
	require.NoError(t, p.seal(1, partBytes))
	require.NoError(t, n.wait(1))
}

// manyBlobs are more than a part can have.
func manyBlobs() (out []agentproto.Blob) {
	for i := range ckpt.MaxFiles {
		out = append(out, agentproto.Blob{Name: fmt.Sprintf("b%d", i), Bytes: 1})
	}
	return out
}
