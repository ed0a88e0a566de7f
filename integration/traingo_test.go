package integration_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/internal/devcluster"
)

// trainGo is examples/train-go on one run of a cluster.
type trainGo struct {
	t       *testing.T
	program string
	env     []string
	run     string
	steps   int
	curve   string
	resumed []int // the steps from which starts went on
}

func newTrainGo(t *testing.T, program string, env []string, run string, steps int) *trainGo {
	return &trainGo{t: t, program: program, env: append(os.Environ(), env...), run: "/train/" + run, steps: steps, curve: filepath.Join(t.TempDir(), run)}
}

// start trains with world ranks. If killAt is not 0, it kills the process once its curve has that
// step.
func (g *trainGo) start(world, killAt int) {
	g.t.Helper()
	var out bytes.Buffer
	cmd := exec.CommandContext(g.t.Context(), g.program, "-run", g.run, "-steps", fmt.Sprint(g.steps), "-every", "5",
		"-world", fmt.Sprint(world), "-curve", g.curve, "-pause", "5ms")
	cmd.Env, cmd.Stdout, cmd.Stderr = g.env, &out, &out
	require.NoError(g.t, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for killed := false; ; {
		select {
		case err := <-ended:
			if killAt == 0 {
				require.NoError(g.t, err, out.String())
			} else {
				require.True(g.t, killed, "it ended by itself before step %d: %v\n%s", killAt, err, out.String())
			}
			var step, ranks int
			if n, _ := fmt.Sscanf(out.String(), "resumed from step %d, which %d ranks saved", &step, &ranks); n == 2 {
				g.resumed = append(g.resumed, step)
			}
			return
		case <-time.After(3 * time.Millisecond):
			if killAt != 0 && !killed && g.lastStep() >= killAt {
				killed = true
				require.NoError(g.t, cmd.Process.Signal(syscall.SIGKILL))
			}
		}
	}
}

// lines returns the lines of the curve.
func (g *trainGo) lines() []string {
	b, err := os.ReadFile(g.curve)
	if err != nil && !os.IsNotExist(err) {
		require.NoError(g.t, err)
	}
	return strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
}

// lastStep returns the newest step of the curve; 0 if there is none.
func (g *trainGo) lastStep() int {
	var step int
	lines := g.lines()
	_, _ = fmt.Sscan(lines[len(lines)-1], &step) // no line yet
	return step
}

// requireCurve compares each line of the curve, those of steps that were trained twice among them,
// with an undisturbed one. All steps are there.
func (g *trainGo) requireCurve(want *trainGo) {
	g.t.Helper()
	whole := map[string]string{}
	for _, line := range want.lines() {
		step, loss, _ := strings.Cut(line, " ")
		whole[step] = loss
	}
	require.Len(g.t, whole, g.steps)
	seen := map[string]bool{}
	for _, line := range g.lines() {
		step, loss, _ := strings.Cut(line, " ")
		require.Equal(g.t, whole[step], loss, "loss of step %s", step)
		seen[step] = true
	}
	require.Len(g.t, seen, g.steps)
	distinct := map[string]bool{}
	for _, loss := range whole {
		distinct[loss] = true
	}
	require.Greater(g.t, len(distinct), g.steps*9/10, "a curve that tells steps apart")
}

// killedAtRandom trains to the end with some kills at random steps, each start with another number of
// ranks, and compares the curve.
func (g *trainGo) killedAtRandom(rng *rand.Rand, kills int, worlds []int, want *trainGo) {
	g.t.Helper()
	for range kills {
		at := g.lastStep() + 12 + rng.IntN(12) // step 11 begins after the commit of step 5
		g.start(worlds[rng.IntN(len(worlds))], at)
	}
	g.start(worlds[rng.IntN(len(worlds))], 0)
	require.Len(g.t, g.resumed, kills, "each start but the first went on from a checkpoint")
	g.t.Logf("resumed from steps %v of %d", g.resumed, g.steps)
	g.requireCurve(want)
}

// TestATrainerKilledAtRandomResumes: examples/train-go, killed at random steps and started with
// another number of ranks each time, has the losses of an undisturbed run, bit by bit. It saves
// directly to the cluster, and then through the agent of the node.
func TestATrainerKilledAtRandomResumes(t *testing.T) {
	t.Parallel()
	kills := rounds(3, 20)
	rng := random(seed(t))
	c := startProcs(t, devcluster.Config{Metadata: 1, Chunkservers: 3})
	env := settingsFor(c)
	program := buildExample(t, "train-go")
	steps := 30 + 25*kills
	whole := newTrainGo(t, program, env, "undisturbed", steps)
	whole.start(2, 0)
	newTrainGo(t, program, env, "killed", steps).killedAtRandom(rng, kills, []int{1, 2, 3, 4}, whole)

	a := newAgentProc(t, c)
	a.start()
	newTrainGo(t, program, append(env, "MORAINE_AGENT="+a.socket()), "agent", steps).killedAtRandom(rng, kills, []int{2}, whole)
}
