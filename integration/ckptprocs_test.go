package integration_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/internal/devcluster"
	"github.com/morainefs/moraine/internal/testseed"
)

// trainerProc is a trainer as a process.
type trainerProc struct {
	t      *testing.T
	cmd    *exec.Cmd
	in     *os.File
	events chan trainerEvent // closed when it has ended
	last   trainerEvent
}

// trained is a job of two ranks on two nodes, each with an agent, over a cluster whose disks can be held.
type trained struct {
	*heldCluster
	rng     *rand.Rand
	cl      *client.Client
	agents  []*agentProc
	restart uint64
	next    trainerSpec // what the trainers of the next round have in common
	ranks   []*trainerProc
	acked   map[uint64]uint32 // attempts by step
}

// round starts a launch whose ranks restore, and stage their parts of the next step.
func (j *trained) round() {
	j.restart++
	j.ranks = nil
	for rank, a := range j.agents {
		s := j.next
		for _, n := range j.Nodes(devcluster.Metadata) {
			s.Metadata = append(s.Metadata, []string{n.Address})
		}
		s.Certs, s.Mode, s.Agent, s.Restart = j.Certs(), j.Mode(), a.socket(), j.restart
		s.Rank, s.World = uint32(rank), uint32(len(j.agents))
		j.ranks = append(j.ranks, j.trainer(s))
	}
	for _, r := range j.ranks {
		r.reaches("staged")
	}
	require.Equal(j.t, j.ranks[0].last, j.ranks[1].last, "all ranks save the same step")
}

func (j *trained) trainer(s trainerSpec) *trainerProc {
	t := j.t
	t.Helper()
	spec, err := json.Marshal(s)
	require.NoError(t, err)
	r := &trainerProc{t: t, cmd: exec.Command(os.Args[0]), events: make(chan trainerEvent, 8)}
	r.cmd.Env = append(os.Environ(), trainerVariable+"="+string(spec))
	r.cmd.Stderr = os.Stderr
	in, theirs, err := os.Pipe()
	require.NoError(t, err)
	r.cmd.Stdin, r.in = in, theirs
	out, err := r.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, r.cmd.Start())
	require.NoError(t, in.Close())
	go func() {
		defer close(r.events)
		d := json.NewDecoder(out)
		for {
			var e trainerEvent
			if d.Decode(&e) != nil {
				_ = r.cmd.Wait() // the events say how it ended
				return
			}
			r.events <- e
		}
	}()
	t.Cleanup(func() {
		_ = r.cmd.Process.Kill() // it may have ended
		_ = r.in.Close()
	})
	return r
}

// reaches waits until the trainer is there. It must not fail.
func (r *trainerProc) reaches(at string) {
	r.t.Helper()
	e := r.event()
	require.Empty(r.t, e.Error)
	require.Equal(r.t, at, e.At)
	r.last = e
}

// event waits for what the trainer does next; the zero value: it has ended.
func (r *trainerProc) event() trainerEvent {
	r.t.Helper()
	select {
	case e := <-r.events:
		return e
	case <-time.After(2 * time.Minute):
		require.FailNow(r.t, "a trainer does nothing for two minutes")
		return trainerEvent{}
	}
}

func (r *trainerProc) signal(sig syscall.Signal) {
	r.t.Helper()
	require.NoError(r.t, r.cmd.Process.Signal(sig))
}

// seal lets the trainer go on after it staged.
func (r *trainerProc) seal() {
	r.t.Helper()
	_, err := r.in.WriteString("\n")
	require.NoError(r.t, err)
}

// local seals the parts of all ranks and waits until the agents have them.
func (j *trained) local() {
	j.t.Helper()
	for _, r := range j.ranks {
		r.seal()
	}
	for _, r := range j.ranks {
		r.reaches("local")
	}
}

// committed requires that ranks learn that the step is at level nvme, and records that.
func (j *trained) committed(ranks ...*trainerProc) {
	j.t.Helper()
	for _, r := range ranks {
		r.reaches("nvme")
		j.acked[r.last.Step] = r.last.Attempt
	}
}

func (j *trained) pause(most time.Duration) time.Duration {
	return time.Duration(j.rng.Int64N(int64(most)))
}

// jobFault is a fault of one round, whose trainers have staged. prepare, if not nil, runs before they start.
type jobFault struct {
	name    string
	prepare func(j *trained)
	run     func(j *trained)
}

var jobFaults = []jobFault{
	{"SIGSTOP of one rank", func(j *trained) { j.next.SealTimeout = 2 * time.Second }, func(j *trained) {
		stopped, other := j.ranks[j.rng.IntN(2)], j.ranks[0]
		if stopped == other {
			other = j.ranks[1]
		}
		stopped.signal(syscall.SIGSTOP)
		other.seal()
		other.reaches("local")
		time.Sleep(j.pause(6 * time.Second))
		stopped.signal(syscall.SIGCONT)
		stopped.seal()
		e := other.event()
		if e.Error == "" {
			require.Equal(j.t, "nvme", e.At)
			j.acked[e.Step] = e.Attempt
			stopped.reaches("local")
			j.committed(stopped)
			return
		}
		require.Equal(j.t, moraine.Aborted.String(), e.Kind, e.Error)
		for e = stopped.event(); e.At == "local"; e = stopped.event() {
		}
		require.NotEmpty(j.t, e.Error, "one rank reports the step as committed, the other as aborted")
	}},
	{"kill -9 of a trainer while it stages", nil, func(j *trained) {
		victim := j.rng.IntN(2)
		j.ranks[1-victim].seal()
		j.ranks[victim].signal(syscall.SIGKILL)
		j.ranks[1-victim].reaches("local")
		e := j.ranks[1-victim].event()
		require.Equal(j.t, moraine.Aborted.String(), e.Kind, e.Error)
	}},
	{"kill -9 of a trainer after Wait(local)", nil, func(j *trained) {
		victim := j.rng.IntN(2)
		for n, r := range []*trainerProc{j.ranks[victim], j.ranks[1-victim]} {
			r.seal()
			r.reaches("local")
			if n == 0 {
				r.signal(syscall.SIGKILL) // the other has sealed nothing yet
			}
		}
		j.committed(j.ranks[1-victim])
	}},
	{"kill -9 of the agent while it flushes", nil, func(j *trained) {
		j.local()
		time.Sleep(j.pause(30 * time.Millisecond))
		a := j.agents[j.rng.IntN(2)]
		a.end(syscall.SIGKILL)
		a.start()
		j.committed(j.ranks...)
	}},
	{"kill -9 of the metadata leader while it commits", nil, func(j *trained) {
		leader := j.Node(leaderOf(j.t, j.cl))
		j.local()
		time.Sleep(j.pause(60 * time.Millisecond))
		require.NoError(j.t, leader.Kill())
		time.Sleep(j.pause(1500 * time.Millisecond))
		j.start([]*devcluster.Node{leader})
		j.committed(j.ranks...)
	}},
	{"kill -9 of m chunkservers between memory and nvme", func(j *trained) { j.next.InMemory = true }, func(j *trained) {
		for _, d := range j.disks {
			d.Hold("segments")
		}
		j.local()
		for _, r := range j.ranks {
			r.reaches("memory")
		}
		j.start(j.kill(2))
		j.committed(j.ranks...)
	}},
}

// TestCheckpointsSurviveFaultsOfProcesses: a job of two ranks saves a step in each round, and a real process
// gets a signal meanwhile. At no moment is there no loadable step once there was one. What is loaded are the
// bytes of one step, and each step that a rank saw at level nvme is there at the end.
func TestCheckpointsSurviveFaultsOfProcesses(t *testing.T) {
	testseed.OnlyLong(t)
	s := testseed.First(t)
	j := &trained{heldCluster: startHeld(t), rng: random(s), acked: map[uint64]uint32{}}
	j.cl = connect(t, j.Cluster, client.Config{CacheEntries: -1})
	for range 2 {
		a := newAgentProc(t, j.Cluster)
		a.start()
		j.agents = append(j.agents, a)
	}
	looks := watchTrained(t, j.cl)
	var order []int
	for round := range testseed.Runs(t, 20, 20) {
		if len(order) == 0 {
			order = j.rng.Perm(len(jobFaults))
		}
		f := jobFaults[order[0]]
		order = order[1:]
		began := time.Now()
		j.next = trainerSpec{SealTimeout: time.Minute}
		if f.prepare != nil {
			f.prepare(j)
		}
		j.round()
		f.run(j)
		t.Logf("round %d: %s: attempt %d step %d, %v", round+1, f.name, j.ranks[0].last.Attempt, j.ranks[0].last.Step, time.Since(began).Round(time.Millisecond))
	}
	seen := looks.end()
	run, err := ckpt.OpenRun(t.Context(), j.cl, trainedRun, ckpt.RunOptions{ReadOnly: true})
	require.NoError(t, err)
	for step, attempt := range j.acked {
		k, err := run.Resolve(t.Context(), ckpt.ResolveOptions{Step: step, Exact: true})
		require.NoError(t, err, "step %d was reported at level nvme", step)
		require.Equal(t, attempt, k.Info.Attempt)
		require.NoError(t, checkTrained(t.Context(), k))
		require.NoError(t, k.Close())
	}
	require.NoError(t, run.Close(t.Context()))
	t.Logf("seed %d: %d steps at level nvme; %s", s, len(j.acked), seen)
	require.NotEmpty(t, j.acked, fmt.Sprint(seen))
}
